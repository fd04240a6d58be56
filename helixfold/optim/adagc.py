"""AdaGC: every tensor's gradient is held to the size that it used to have (arXiv 2502.11034)."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from helixfold.optim.clip import factor
from helixfold.optim.config import AdaGCConfig


def unseen(tensors: int, device: torch.device) -> Float32[Tensor, " t"]:
    """Averages before the first step: infinite, so that nothing is clipped by them."""
    return torch.full((tensors,), torch.inf, device=device)


def warm_up(
    norms: Float[Tensor, " t"], averages: Float32[Tensor, " t"], clip_norm: float
) -> tuple[Float32[Tensor, " t"], Float32[Tensor, " t"]]:
    """Factors that clip the whole gradient, and each tensor's smallest norm so far (Alg. 1, t < T_start)."""
    scale = factor(torch.linalg.vector_norm(norms), clip_norm).expand(len(norms))
    return scale, torch.where(norms > 0, torch.minimum(averages, (norms * scale).float()), averages)


def adapt(
    norms: Float[Tensor, " t"], averages: Float32[Tensor, " t"], config: AdaGCConfig
) -> tuple[Float32[Tensor, " t"], Float32[Tensor, " t"]]:
    """Factors that clip each tensor by its own average, and the averages with the clipped norms in them (Alg. 1)."""
    # Differs from AdaGC: a norm of zero is not counted. A tensor without gradient (a layer in front of one that starts
    # at zero, the template stack without templates) says nothing of its size, and an average of zero would stop it
    # for good. What has not been counted before takes its first norm as the average.
    scale = factor(norms, config.relative_threshold * averages)
    clipped = (norms * scale).float()
    moved = config.decay * averages + (1 - config.decay) * clipped
    return scale, torch.where(norms > 0, torch.where(averages.isinf(), clipped, moved), averages)
