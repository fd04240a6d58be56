"""Norms of gradients that lie in flat buffers, and the factors that limit them."""

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from helixfold.ops.fused_adam import LINE

# Elements that are converted to float32 at a time.
_CHUNK = 2**18


def tensor_norms(flat: Float[Tensor, " n"], lines: Int[Tensor, " t"]) -> Float[Tensor, " t"]:
    """The norm of each of the tensors of so many `lines` that fill a flat buffer, in one pass; float64.

    A sum over the whole buffer in float32 can be off by a percent: only lines are summed in float32.
    """
    if flat.dtype == torch.float32:
        by_line = torch.linalg.vector_norm(flat.view(-1, LINE), dim=1)
    else:
        by_line = torch.empty(len(flat) // LINE, device=flat.device)
        for part, norms in zip(flat.split(_CHUNK), by_line.split(_CHUNK // LINE), strict=True):
            torch.linalg.vector_norm(part.float().view(-1, LINE), dim=1, out=norms)
    return torch.segment_reduce(by_line.double().square_(), "sum", lengths=lines, unsafe=True).sqrt_()


def factor(norm: Float[Tensor, "*t"], limit: Float[Tensor, "*t"] | float) -> Float32[Tensor, "*t"]:
    """What brings a norm down to its limit, 1 below it; NaN for a norm that is not finite, so that it is noticed."""
    ratio = torch.where(norm > limit, limit / norm, 1.0)
    return torch.where(norm.isfinite(), ratio, torch.nan).float()


def add_scaled(total: Float32[Tensor, " n"], gradient: Float[Tensor, " n"], scale: Float32[Tensor, ""]) -> None:
    """Move a part's gradient, scaled, into the sum; what it came from is zero afterwards."""
    for into, part in zip(total.split(_CHUNK), gradient.split(_CHUNK), strict=True):
        into.addcmul_(part, scale)
        part.zero_()
