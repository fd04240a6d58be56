"""Norms of gradients in flat buffers, and factors that clip the whole gradient or each tensor (AdaGC).

Each parameter starts at a multiple of `LINE` elements in a flat buffer, called a line. A row is `ROW` elements.
"""

import torch
from jaxtyping import Float, Float32, Float64, Int
from torch import Tensor

from helixfold.ops.constants import LINE
from helixfold.optim.config import AdaGCConfig

# Length of a row: the number of elements whose squares are summed in float32.
ROW = 1024
# Elements that are read at a time. Few kernel launches on a GPU, and few waits for threads on a CPU, matter more than
# the cache.
_CHUNK, _CHUNK_ON_A_DEVICE = 2**21, 2**24


def tensor_norms(flat: Float[Tensor, " n"], lines: Int[Tensor, " t"]) -> Float64[Tensor, " t"]:
    """Return the norm of each tensor in a flat buffer, which is read once; `lines` has their lengths in lines.

    A line is `LINE` elements. Tensors follow one another, each padded to whole lines.
    """
    return tensor_norms_of_lines(row_norms(flat, LINE), lines)


def tensor_norms_of_lines(norms: Float32[Tensor, " n"], lines: Int[Tensor, " t"]) -> Float64[Tensor, " t"]:
    """Return the norm of each tensor from the norms of all lines; `lines` has the lengths of the tensors in lines."""
    return torch.segment_reduce(norms.double().square_(), "sum", lengths=lines, unsafe=True).sqrt_()


def norm(flat: Float[Tensor, " n"]) -> Float64[Tensor, ""]:
    """Return the norm of a whole flat buffer, which is read once.

    Only rows are summed in float32, because a float32 sum over the whole buffer can have an error of one percent.
    """
    return norm_of_rows(row_norms(flat, ROW))


def norm_of_rows(norms: Float32[Tensor, " n"]) -> Float64[Tensor, ""]:
    """Return the norm of a whole buffer from the norms of its rows, in float64."""
    return torch.linalg.vector_norm(norms.double())


def row_norms(flat: Float[Tensor, " n"], size: int) -> Float32[Tensor, " rows"]:
    """Return the norm of each row of `size` consecutive elements, the last of which may be shorter."""
    rest = len(flat) % size
    whole = flat[: len(flat) - rest]
    norms = torch.empty(-(-len(flat) // size), device=flat.device)
    if flat.dtype == torch.float32:
        torch.linalg.vector_norm(whole.view(-1, size), dim=1, out=norms[: len(whole) // size])
    else:
        chunk = _chunk(flat)
        for part, into in zip(whole.split(chunk), norms[: len(whole) // size].split(chunk // size), strict=True):
            torch.linalg.vector_norm(part.float().view(-1, size), dim=1, out=into)
    if rest:
        norms[-1] = torch.linalg.vector_norm(flat[len(whole) :].float())
    return norms


def factor(norms: Float[Tensor, "*t"], limit: Float[Tensor, "*t"] | float) -> Float32[Tensor, "*t"]:
    """Return the factor that reduces each norm to its limit; 1 for norms below the limit.

    The factor of a norm that is not finite is NaN, so that it does not go unnoticed.
    """
    return torch.where(norms.isfinite(), torch.where(norms > limit, limit / norms, 1.0), torch.nan).float()


def add_scaled(total: Float32[Tensor, " n"], gradient: Float[Tensor, " n"], scale: Float32[Tensor, ""]) -> None:
    """Add a micro-batch's gradient times `scale` to the sum `total` in place, and set the gradient to zero."""
    chunk = _chunk(total)
    for into, part in zip(total.split(chunk), gradient.split(chunk), strict=True):
        into.addcmul_(part, scale)
        part.zero_()


def _chunk(flat: Tensor) -> int:
    """Return the number of elements to read at a time on the device of `flat`."""
    return _CHUNK if flat.device.type == "cpu" else _CHUNK_ON_A_DEVICE


def adagc_warm_up(
    norms: Float[Tensor, " t"], averages: Float32[Tensor, " t"], clip_norm: float
) -> tuple[Float32[Tensor, " t"], Float32[Tensor, " t"]]:
    """Return factors that clip the whole gradient to `clip_norm`, equal for all tensors, and the new averages.

    AdaGC, arXiv 2502.11034, Alg. 1, t < T_start: during warm-up the average of a tensor is its smallest clipped norm so
    far. `norms` has one norm per tensor; a norm of 0 does not change an average.
    """
    scale = factor(torch.linalg.vector_norm(norms), clip_norm).expand(len(norms))
    return scale, torch.where(norms > 0, torch.minimum(averages, (norms * scale).float()), averages)


def adagc_adapt(
    norms: Float[Tensor, " t"], averages: Float32[Tensor, " t"], config: AdaGCConfig
) -> tuple[Float32[Tensor, " t"], Float32[Tensor, " t"]]:
    """Return factors that clip each tensor by its own average, and the averages updated by the clipped norms.

    AdaGC clips each tensor relative to its own earlier norms (arXiv 2502.11034, Alg. 1). `norms` has one norm per
    tensor. A norm of 0 does not change an average, and the first other norm replaces an infinite one.
    """
    # Differs from AdaGC: a norm of zero does not enter the average. A tensor has a gradient of zero if the next layer
    # starts at zero, or in the template stack without templates. An average of zero would stop its training for good.
    # The first nonzero norm becomes the average.
    scale = factor(norms, config.relative_threshold * averages)
    clipped = (norms * scale).float()
    updated = config.decay * averages + (1 - config.decay) * clipped
    return scale, torch.where(norms > 0, torch.where(averages.isinf(), clipped, updated), averages)
