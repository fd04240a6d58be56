"""AdaGC: the gradient of each tensor is clipped relative to its own earlier norms (arXiv 2502.11034)."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from helixfold.optim.clip import factor
from helixfold.optim.config import AdaGCConfig


def warm_up(
    norms: Float[Tensor, " t"], averages: Float32[Tensor, " t"], clip_norm: float
) -> tuple[Float32[Tensor, " t"], Float32[Tensor, " t"]]:
    """Return factors that clip the whole gradient to `clip_norm`, and the new averages (Alg. 1, t < T_start).

    During warm-up the average of a tensor is its smallest clipped norm so far. `norms` has one norm for each tensor.
    """
    scale = factor(torch.linalg.vector_norm(norms), clip_norm).expand(len(norms))
    return scale, torch.where(norms > 0, torch.minimum(averages, (norms * scale).float()), averages)


def adapt(
    norms: Float[Tensor, " t"], averages: Float32[Tensor, " t"], config: AdaGCConfig
) -> tuple[Float32[Tensor, " t"], Float32[Tensor, " t"]]:
    """Return factors that clip each tensor by its own average, and the averages updated by the clipped norms (Alg. 1).

    `norms` has one norm for each tensor.
    """
    # Differs from AdaGC: a norm of zero does not enter the average. A tensor has no gradient if the next layer starts
    # at zero, or in the template stack if there are no templates; an average of zero would then stop it for good. The
    # first norm that is not zero becomes the average.
    scale = factor(norms, config.relative_threshold * averages)
    clipped = (norms * scale).float()
    moved = config.decay * averages + (1 - config.decay) * clipped
    return scale, torch.where(norms > 0, torch.where(averages.isinf(), clipped, moved), averages)
