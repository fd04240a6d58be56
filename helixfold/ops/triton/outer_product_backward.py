"""Gradients of the outer product mean as Triton kernels.

G is the gradient divided by the count. For the gradient of an operand, each program sums over edges for some columns,
channels and sequences of the operand, and recomputes the gradients G W of the channels for every block of sequences.
For the gradient of the weight, each program recomputes some channels and has a partial sum for each part of the edges.
"""

from typing import Any, no_type_check

import torch
from torch import Tensor

from helixfold.ops.triton.language import FLOAT32, HALF, cdiv, exchanged, kernel, multiplies_from_shared_memory, tl
from helixfold.ops.triton.sums import summed

# Programs for the gradient of the weight: one per multiprocessor of an H200.
_PROGRAMS = 132


@kernel
@no_type_check
def _backward_of_operand(
    grad_y_at,
    weight_at,
    other_at,
    grad_own_at,
    size_own,
    size_other,
    depth,
    sequences,
    grad_y_own,
    grad_y_other,
    weight_own,
    weight_other,
    c: tl.constexpr,
    d: tl.constexpr,
    c_z: tl.constexpr,
    block_own: tl.constexpr,
    block_other: tl.constexpr,
    block_c: tl.constexpr,
    block_s: tl.constexpr,
    precision: tl.constexpr,
):
    """Store the gradient of some rows, channels and sequences of one operand ("own"), summed over the other's rows."""
    # The names apply to the left operand, with rows i and channels c. The right operand has columns j and channels d.
    b = tl.program_id(2).to(tl.int64)
    first_own = tl.program_id(0) // (c // block_c) * block_own
    first_c = tl.program_id(0) % (c // block_c) * block_c
    s = tl.program_id(1) * block_s + tl.arange(0, block_s)[None, :]
    edge = tl.arange(0, block_own * block_other)
    own = first_own + edge // block_other
    z = tl.arange(0, c_z)
    own_offset = b * size_own * size_other + own.to(tl.int64) * grad_y_own
    channel = tl.arange(0, block_c * d)[None, :]
    weight_offset = (first_c + channel // d) * weight_own + channel % d * weight_other
    weight = tl.load(weight_at + z[:, None] * (c * d) + weight_offset)
    other_row = tl.arange(0, block_other * d)
    total = tl.zeros((block_own * block_c, block_s), tl.float32)
    for first in range(0, size_other, block_other):
        other = first + edge % block_other
        inside = (own < size_own) & (other < size_other)
        grad_y_offset = (own_offset + other.to(tl.int64) * grad_y_other)[:, None] * c_z + z[None, :]
        grad_y = tl.load(grad_y_at + grad_y_offset, mask=inside[:, None], other=0.0)
        grad_outer = tl.dot(grad_y, weight, input_precision=precision).to(grad_y.dtype)
        grad_outer = exchanged(grad_outer, block_own, block_other, block_c, d)
        exists = (first + other_row // d < size_other)[:, None] & (s < depth)
        other_offset = ((b * size_other + first) * d + other_row)[:, None] * depth + s
        other_tile = tl.load(other_at + other_offset, mask=exists, other=0.0)
        total = tl.dot(grad_outer, other_tile, total, input_precision=precision)
    row = tl.arange(0, block_own * block_c)
    own = first_own + row // block_c
    grad_own_at += ((b * size_own + own) * sequences * c + first_c + row % block_c)[:, None] + s * c
    tl.store(grad_own_at, total.to(grad_own_at.dtype.element_ty), mask=(own < size_own)[:, None] & (s < sequences))


@kernel
@no_type_check
def _backward_of_weight(
    grad_y_at,
    left_at,
    right_at,
    sums_at,
    samples,
    size_i,
    size_j,
    depth,
    c: tl.constexpr,
    d: tl.constexpr,
    c_z: tl.constexpr,
    block_i: tl.constexpr,
    block_j: tl.constexpr,
    block_c: tl.constexpr,
    block_s: tl.constexpr,
    in_one: tl.constexpr,
    precision: tl.constexpr,
):
    """Store the sums over some tiles of edges of the gradients of the weight and of its offset, for some channels."""
    first_c = tl.program_id(0) * block_c
    tiles_i, tiles_j = tl.cdiv(size_i, block_i), tl.cdiv(size_j, block_j)
    left_row, right_row = tl.arange(0, block_i * block_c), tl.arange(0, block_j * d)
    edge = tl.arange(0, block_i * block_j)
    z = tl.arange(0, c_z)
    total = tl.zeros((c_z, block_c * d), tl.float32)
    total_offset = tl.zeros((c_z,), tl.float32)
    for tile in range(tl.program_id(1), samples * tiles_i * tiles_j, tl.num_programs(1)):
        b = (tile // tiles_j // tiles_i).to(tl.int64)
        first_i, first_j = tile // tiles_j % tiles_i * block_i, tile % tiles_j * block_j
        left_i = first_i + left_row // block_c
        left_offset = ((b * size_i + left_i) * c + first_c + left_row % block_c) * depth
        right_offset = ((b * size_j + first_j) * d + right_row) * depth
        right_inside = (first_j + right_row // d < size_j)[None, :]
        left_inside = (left_i < size_i)[:, None]
        if in_one:
            s = tl.arange(0, block_s)
            left = tl.load(left_at + left_offset[:, None] + s[None, :], mask=left_inside, other=0.0)
            right = tl.load(right_at + right_offset[None, :] + s[:, None], mask=right_inside, other=0.0)
            outer = tl.dot(left, right, input_precision=precision)
        else:
            outer = tl.zeros((block_i * block_c, block_j * d), tl.float32)
            for first_s in range(0, depth, block_s):
                s = first_s + tl.arange(0, block_s)
                left = tl.load(left_at + left_offset[:, None] + s[None, :], mask=left_inside, other=0.0)
                right = tl.load(right_at + right_offset[None, :] + s[:, None], mask=right_inside, other=0.0)
                outer = tl.dot(left, right, outer, input_precision=precision)
        outer = exchanged(outer.to(left_at.dtype.element_ty), block_i, block_c, block_j, d)
        i, j = first_i + edge // block_j, first_j + edge % block_j
        grad_y_offset = ((b * size_i + i) * size_j + j)[:, None] * c_z + z[None, :]
        grad_y = tl.load(grad_y_at + grad_y_offset, mask=((i < size_i) & (j < size_j))[:, None], other=0.0)
        total = tl.dot(tl.trans(grad_y), outer, total, input_precision=precision)
        total_offset += tl.sum(grad_y.to(tl.float32), 0)
    channel = first_c * d + tl.arange(0, block_c * d)
    sums_at += tl.program_id(1) * (c_z * (c * d + 1))
    tl.store(sums_at + z[:, None] * (c * d) + channel[None, :], total)
    # All programs for the same edges compute the same sum.
    if first_c == 0:
        tl.store(sums_at + c_z * c * d + z, total_offset)


def _operand_tiles(operand: Tensor) -> dict[str, Any]:
    """Return tile sizes for the gradient of an operand [b i c s]; two thread blocks fit on a multiprocessor."""
    if operand.dtype == torch.float32:
        return {"block_own": 8, "block_other": 4, "block_c": 2, "block_s": 64, **FLOAT32}
    # With 64 edges, matrix instructions read both operands of the first product from shared memory.
    block_other = 4 if multiplies_from_shared_memory(operand.device) else 2
    return {"block_own": 16, "block_other": block_other, "block_c": 4, "block_s": min(operand.shape[3], 128), **HALF}


def _weight_tiles(left: Tensor) -> dict[str, Any]:
    """Return tile sizes and launch options for the gradient of the weight; `left` is [b i c s]."""
    depth = left.shape[3]
    if left.dtype == torch.float32:
        return {"block_i": 8, "block_j": 4, "block_c": 4, "block_s": 32, "in_one": False, **FLOAT32}
    block_j = 8 if multiplies_from_shared_memory(left.device) else 4
    return {"block_i": 16, "block_j": block_j, "block_c": 4, "block_s": min(depth, 128), "in_one": depth <= 128, **HALF}


def operand_gradient(
    grad_y: Tensor, weight: Tensor, own_rows: Tensor, other_rows: Tensor, sequences: int, *, transposed: bool
) -> Tensor:
    """Return the gradient of the operand with rows `own_rows`: [b i s c] for the left, [b s j d] for the right operand.

    `grad_y` is the gradient of the edges divided by the count. `transposed` must be true for the right operand, whose
    rows are the columns of `grad_y`.
    """
    (b, size_own, c, depth), (_, size_other, d, _) = own_rows.shape, other_rows.shape
    grad_own = grad_y.new_empty(b, size_own, sequences, c)
    tiles = _operand_tiles(own_rows)
    blocks = cdiv(size_own, tiles["block_own"]) * (c // tiles["block_c"])
    _backward_of_operand[(blocks, cdiv(depth, tiles["block_s"]), b)](
        grad_y,
        weight,
        other_rows,
        grad_own,
        size_own,
        size_other,
        depth,
        sequences,
        *((1, size_own) if transposed else (size_other, 1)),
        *((1, c) if transposed else (d, 1)),
        c=c,
        d=d,
        c_z=len(weight),
        **tiles,
    )
    return grad_own.transpose(1, 2) if transposed else grad_own


def parameter_gradients(
    grad_y: Tensor, left_rows: Tensor, right_rows: Tensor, weight: Tensor, offset: Tensor
) -> list[Tensor]:
    """Return the gradients of weight and offset of the output map.

    `grad_y` [b i j c_z] is the gradient of the edges divided by the count.
    """
    (b, size_i, c, depth), (_, size_j, d, _) = left_rows.shape, right_rows.shape
    tiles = _weight_tiles(left_rows)
    chunks = c // tiles["block_c"]
    edges = b * cdiv(size_i, tiles["block_i"]) * cdiv(size_j, tiles["block_j"])
    sums = min(max(1, _PROGRAMS // chunks), edges)
    numbers = weight.numel() + offset.numel()
    partial_sums = torch.empty(sums, numbers, dtype=torch.float32, device=weight.device)
    _backward_of_weight[(chunks, sums)](
        grad_y,
        left_rows,
        right_rows,
        partial_sums,
        b,
        size_i,
        size_j,
        depth,
        c=c,
        d=d,
        c_z=len(weight),
        **tiles,
    )
    return summed(partial_sums, weight, offset)
