"""The layer norm of a residual sum with dropout, as Triton kernels that read and write every row once."""

from typing import Any, no_type_check

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from helixfold.ops.constants import EPS
from helixfold.ops.triton.language import cdiv, jit, kernel, next_power_of_2, tl
from helixfold.ops.triton.layer_norm import gradient_through_norm, normalised
from helixfold.ops.triton.sums import summed
from helixfold.ops.weights import Affine

_EPS = tl.constexpr(EPS)
# Elements of a tile. Streams of residues are small: these make a program for every 4 of 256 residues.
_TILE = 2048


@jit
@no_type_check
def _read(inputs, place, inside):
    """Return a tile of the sum times the dropout mask, and a tile of the mask, or 1 without a mask."""
    total = tl.load(inputs[0] + place, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(inputs[1] + place, mask=inside, other=0.0).to(tl.float32)
    mask = tl.zeros_like(total) + 1.0
    if inputs[2] is not None:
        mask = tl.load(inputs[2] + place, mask=inside, other=0.0).to(tl.float32)
    return total * mask, mask


@kernel
@no_type_check
def norm_sum(inputs, scale_at, offset_at, y_at, rows, c: tl.constexpr, block_rows: tl.constexpr, block_c: tl.constexpr):
    """Write the layer norm of a tile of rows; `inputs` are the stream, its change and the dropout mask or None."""
    row, channel = tl.program_id(0) * block_rows + tl.arange(0, block_rows), tl.arange(0, block_c)
    inside = (row < rows)[:, None] & (channel < c)[None, :]
    place = row.to(tl.int64)[:, None] * c + channel[None, :]
    normed, _ = normalised(_read(inputs, place, inside)[0], channel, _EPS, c)
    scale = tl.load(scale_at + channel, mask=channel < c, other=0.0).to(tl.float32)
    offset = tl.load(offset_at + channel, mask=channel < c, other=0.0).to(tl.float32)
    tl.store(y_at + place, (normed * scale[None, :] + offset[None, :]).to(y_at.dtype.element_ty), mask=inside)


@kernel
@no_type_check
def norm_sum_backward(
    inputs,
    scale_at,
    grad_y_at,
    grad_at,
    sums_at,
    rows,
    c: tl.constexpr,
    block_rows: tl.constexpr,
    block_c: tl.constexpr,
):
    """Write the gradient of the sum, which both stream and change have, and partial sums for scale and offset."""
    row, channel = tl.program_id(0) * block_rows + tl.arange(0, block_rows), tl.arange(0, block_c)
    inside = (row < rows)[:, None] & (channel < c)[None, :]
    place = row.to(tl.int64)[:, None] * c + channel[None, :]
    x, mask = _read(inputs, place, inside)
    normed, factor = normalised(x, channel, _EPS, c)
    grad_y = tl.load(grad_y_at + place, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(scale_at + channel, mask=channel < c, other=0.0).to(tl.float32)
    gradient = mask * gradient_through_norm(grad_y * scale[None, :], normed, factor, c)
    tl.store(grad_at + place, gradient.to(grad_at.dtype.element_ty), mask=inside)
    sums_at += tl.program_id(0) * 2 * c + channel
    tl.store(sums_at, tl.sum(grad_y * normed, 0), mask=channel < c)
    tl.store(sums_at + c, tl.sum(grad_y, 0), mask=channel < c)


def _tiles(x: Tensor) -> tuple[int, dict[str, int]]:
    """Return the number of tiles and the sizes of a tile."""
    c = x.shape[-1]
    block_c = next_power_of_2(c)
    block_rows = max(1, _TILE // block_c)
    sizes = {"c": c, "block_rows": block_rows, "block_c": block_c, "num_warps": 4}
    return cdiv(x.numel() // c, block_rows), sizes


class _ResidualNorm(torch.autograd.Function):
    """The norm, whose gradients are computed from its inputs."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, change: Tensor, scale: Tensor, offset: Tensor, mask: Tensor | None) -> Tensor:
        stream, change = stream.contiguous(), change.contiguous()
        mask = None if mask is None else mask.contiguous()
        programs, sizes = _tiles(stream)
        y = torch.empty_like(stream)
        norm_sum[(programs,)]((stream, change, mask), scale, offset, y, y.numel() // y.shape[-1], **sizes)
        ctx.save_for_backward(stream, change, scale, offset, mask)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        stream, change, scale, offset, mask = ctx.saved_tensors
        programs, sizes = _tiles(stream)
        gradient, c = torch.empty_like(stream), stream.shape[-1]
        sums = torch.empty(programs, 2, c, dtype=torch.float32, device=stream.device)
        norm_sum_backward[(programs,)](
            (stream, change, mask), scale, grad_y.contiguous(), gradient, sums, stream.numel() // c, **sizes
        )
        learnt = summed(sums, scale, offset) if any(ctx.needs_input_grad[2:4]) else (None, None)
        return gradient, gradient, *learnt, None


def residual_norm_triton(stream: Tensor, change: Tensor, norm: Affine, dropout_mask: Tensor | None = None) -> Tensor:
    """Compute `residual_norm` on a CUDA device."""
    normed: Tensor = _ResidualNorm.apply(stream, change, *norm, dropout_mask)
    return normed
