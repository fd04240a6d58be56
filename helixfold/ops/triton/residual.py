"""Dropout and residual addition as one Triton kernel, for streams and changes with any strides."""

from typing import Any, no_type_check

import torch
from torch import Tensor

from helixfold.ops.triton.language import cdiv, kernel, next_power_of_2, tl
from helixfold.ops.triton.layer_norm import as_rows, contiguous_channels, elements

# Elements of a tile: 16 per thread, with 128 threads.
_TILE = 2048


@kernel
@no_type_check
def _add(
    stream_at,
    change_at,
    mask_at,
    sum_at,
    rows,
    size_i,
    size_j,
    stream_b,
    stream_i,
    stream_j,
    change_b,
    change_i,
    change_j,
    mask_b,
    mask_i,
    mask_j,
    sum_b,
    sum_i,
    sum_j,
    c,
    has_stream: tl.constexpr,
    has_mask: tl.constexpr,
    block_rows: tl.constexpr,
    block_c: tl.constexpr,
):
    """Store the stream plus the change times the mask for a tile of rows; `stream_b` etc. are strides [b i j c]."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    channel = tl.program_id(1) * block_c + tl.arange(0, block_c)
    inside = (row < rows)[:, None] & (channel < c)[None, :]
    change_at = elements(change_at, row, channel, size_i, size_j, change_b, change_i, change_j)
    total = tl.load(change_at, mask=inside, other=0.0).to(tl.float32)
    if has_mask:
        mask_at = elements(mask_at, row, channel, size_i, size_j, mask_b, mask_i, mask_j)
        total *= tl.load(mask_at, mask=inside, other=0.0).to(tl.float32)
    if has_stream:
        stream_at = elements(stream_at, row, channel, size_i, size_j, stream_b, stream_i, stream_j)
        total += tl.load(stream_at, mask=inside, other=0.0).to(tl.float32)
    sum_at = elements(sum_at, row, channel, size_i, size_j, sum_b, sum_i, sum_j)
    tl.store(sum_at, total.to(sum_at.dtype.element_ty), mask=inside)


def _launch(result: Tensor, stream: Tensor | None, change: Tensor, mask: Tensor | None) -> Tensor:
    """Write `change`, times the optional `mask`, plus the optional `stream`, into `result` and return it."""
    # `result` replaces absent arguments, which the kernel does not read. Expanded masks have stride 0.
    result_rows, stream_rows, change_rows, mask_rows = as_rows(
        result,
        result if stream is None else contiguous_channels(stream),
        contiguous_channels(change),
        result if mask is None else contiguous_channels(mask).expand(change.shape),
    )
    rows, c = result_rows[..., 0].numel(), change.shape[-1]
    block_c = min(next_power_of_2(c), 256)
    block_rows = _TILE // block_c
    _add[(cdiv(rows, block_rows), cdiv(c, block_c))](
        stream_rows,
        change_rows,
        mask_rows,
        result_rows,
        rows,
        *result_rows.shape[1:3],
        *stream_rows.stride()[:3],
        *change_rows.stride()[:3],
        *mask_rows.stride()[:3],
        *result_rows.stride()[:3],
        c,
        has_stream=stream is not None,
        has_mask=mask is not None,
        block_rows=block_rows,
        block_c=block_c,
        num_warps=4,
    )
    return result


class _AddChange(torch.autograd.Function):
    """The masked residual addition, which saves only the mask; it passes on the gradient of the stream."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, change: Tensor, mask: Tensor | None) -> Tensor:
        ctx.save_for_backward(mask)
        # The gradient of the change has the memory layout of the change, which the next backward function needs.
        ctx.transposed = change.stride(1) < change.stride(2)
        return _launch(torch.empty_like(stream), stream, change, mask)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """Return the gradients of stream and change; the latter is multiplied by the dropout mask."""
        (mask,) = ctx.saved_tensors
        if mask is None or not ctx.needs_input_grad[1]:
            return gradient, gradient, None
        transposed = gradient.transpose(1, 2) if ctx.transposed else gradient
        grad_change = torch.empty_like(transposed, memory_format=torch.contiguous_format)
        grad_change = grad_change.transpose(1, 2) if ctx.transposed else grad_change
        return gradient, _launch(grad_change, None, gradient, mask), None


def add_change_triton(stream: Tensor, change: Tensor, dropout_mask: Tensor | None = None) -> Tensor:
    """Compute `add_change` on a CUDA device."""
    return _AddChange.apply(stream, change, dropout_mask)
