"""Sums of partial gradients of parameters, which kernels store one per program so that the order is fixed."""

from collections.abc import Sequence
from typing import no_type_check

import torch
from torch import Tensor

from helixfold.ops.triton.language import cdiv, kernel, next_power_of_2, tl

# Elements of a tile: 16 per thread, or 32 for many parts, with 128 threads.
_TILE = 2048
_MANY_PARTS = 64
_MAX_PARTS = 512


@kernel
@no_type_check
def _sum(parts_at, sum_at, parts, columns, block_parts: tl.constexpr, block_columns: tl.constexpr):
    """Store the sums of some columns over all `parts` rows of partial sums, in the dtype of the result."""
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)[None, :]
    total = tl.zeros([block_parts, block_columns], tl.float32)
    for first in range(0, parts, block_parts):
        part = (first + tl.arange(0, block_parts)).to(tl.int64)[:, None]
        total += tl.load(parts_at + part * columns + column, mask=(part < parts) & (column < columns), other=0.0)
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    tl.store(sum_at + column, tl.sum(total, 0).to(sum_at.dtype.element_ty), mask=column < columns)


def summed(parts: Tensor, *parameters: Tensor) -> list[Tensor]:
    """Return the sums over dim 0 of `parts`, split into gradients of these parameters, with their shapes and dtypes.

    Each row of `parts`, in float32, has the elements of all parameters, one parameter after the other. The gradients
    are views of one tensor if all parameters have the same dtype.
    """
    dtypes = {parameter.dtype for parameter in parameters}
    flat = parts.flatten(1)
    columns = flat.shape[1]
    total = flat.new_empty(columns, dtype=dtypes.pop() if len(dtypes) == 1 else torch.float32)
    block_parts = min(_MAX_PARTS, next_power_of_2(len(flat)))
    # Many parts with few columns are limited by latency, so each program loads the maximum of parts, and few columns.
    block_columns = 8 if block_parts > _MANY_PARTS else min(_TILE // block_parts, 256)
    _sum[(cdiv(columns, block_columns),)](
        flat, total, len(flat), columns, block_parts=block_parts, block_columns=block_columns, num_warps=4
    )
    pieces = total.split([parameter.numel() for parameter in parameters])
    return [
        piece.view(parameter.shape).to(parameter.dtype) for piece, parameter in zip(pieces, parameters, strict=True)
    ]


def weight_gradients(
    gradients: Sequence[Tensor], packed: Tensor, x: Tensor | None, needed: Sequence[bool]
) -> list[Tensor | None]:
    """Return the gradients [out, in] of the weights of maps of `x` [m, in], or None where not `needed`.

    `gradients` are the gradients of the outputs of the maps [m, out], stored side by side in `packed`, so that one
    product computes all.
    """
    if x is None or not any(needed):
        return [None] * len(needed)
    if all(needed):
        return [*(packed.T @ x).split([gradient.shape[1] for gradient in gradients])]
    return [gradient.T @ x if is_needed else None for gradient, is_needed in zip(gradients, needed, strict=True)]
