"""The outer product mean as Triton kernels that never store the c * d channels of an edge.

In the forward pass a tile of 16 x 8 edges reads its columns of both operands and the whole output weight. With s = 128,
c = d = 32 and c_z = 128 in bfloat16 these are 128 + 64 + 256 KiB from the L2 cache for 67 MFLOP, 146 operations per
byte. For 256 x 256 edges that is 0.23 GB, 0.13 of it for the weight, while 22 MB come from memory; stored channels
would be 134 MB, written and read. Deeper alignments read the right operand again for every chunk of the left operand's
channels and have 91 operations per byte at s = 512.

In the backward pass, with G the gradient divided by the count, an operand's gradient is summed by programs that own
some of its columns, channels and sequences, and that recompute the channels' gradients G W for every block of
sequences. The weight's gradient is summed by programs that own channels and recompute these, with a partial sum for
each part of the edges.
"""

from typing import Any, no_type_check

import torch
from torch import Tensor

from helixfold.ops.constants import COUNT_FLOOR
from helixfold.ops.triton.language import cdiv, jit, kernel, tl
from helixfold.ops.triton.sums import summed
from helixfold.ops.weights import Affine

# Sequences are padded to whole blocks, so that rows of them begin at multiples of 128 bytes.
_SEQUENCES = 64
# Programs for the weight's gradient: one per multiprocessor of an H200.
_PROGRAMS = 132
_FLOAT32: dict[str, Any] = {"precision": "ieee", "num_warps": 8, "num_stages": 1}
_HALF: dict[str, Any] = {"precision": None, "num_warps": 8, "num_stages": 2}


@jit
@no_type_check
def _exchanged(x, i: tl.constexpr, j: tl.constexpr, k: tl.constexpr, m: tl.constexpr):
    """Return [(i j) (k m)] as [(i k) (j m)]."""
    return tl.reshape(tl.permute(tl.reshape(x, (i, j, k, m)), (0, 2, 1, 3)), (i * k, j * m))


@kernel
@no_type_check
def _forward(
    left_at,
    right_at,
    left_mask_at,
    right_mask_at,
    weight_at,
    offset_at,
    y_at,
    inverse_at,
    size_i,
    size_j,
    depth,
    sequences,
    left_mask_b,
    left_mask_i,
    left_mask_s,
    right_mask_b,
    right_mask_s,
    right_mask_j,
    floor,
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
    b = tl.program_id(1).to(tl.int64)
    first_i = tl.program_id(0) // tl.cdiv(size_j, block_j) * block_i
    first_j = tl.program_id(0) % tl.cdiv(size_j, block_j) * block_j
    i, j = first_i + tl.arange(0, block_i), first_j + tl.arange(0, block_j)
    left_mask_at += b * left_mask_b + i.to(tl.int64)[:, None] * left_mask_i
    right_mask_at += b * right_mask_b + j.to(tl.int64)[:, None] * right_mask_j
    count = tl.zeros((block_i, block_j), tl.float32)
    # Stages load the next block's masks meanwhile; loops with a matrix product have them by default.
    for first in tl.range(0, sequences, 64, num_stages=3):
        s = first + tl.arange(0, 64)[None, :]
        left_mask = tl.load(left_mask_at + s * left_mask_s, mask=(i < size_i)[:, None] & (s < sequences), other=0.0)
        right_mask = tl.load(right_mask_at + s * right_mask_s, mask=(j < size_j)[:, None] & (s < sequences), other=0.0)
        count += tl.sum(left_mask[:, None, :] * right_mask[None, :, :], 2)
    inverse = 1.0 / (count + floor)

    # Rows (i c) of the left operand and (j d) of the right one, with sequences s contiguous.
    left_row = tl.arange(0, block_i * block_c)
    left_inside = (first_i + left_row // block_c < size_i)[:, None]
    left_at += (((b * size_i + first_i + left_row // block_c) * c + left_row % block_c) * depth)[:, None]
    right_row = tl.arange(0, block_j * d)
    right_inside = (first_j + right_row // d < size_j)[None, :]
    right_at += (((b * size_j + first_j) * d + right_row) * depth)[None, :]
    z = tl.arange(0, c_z)[None, :]
    total = tl.zeros((block_i * block_j, c_z), tl.float32)
    if in_one:
        s = tl.arange(0, block_s)
        right = tl.load(right_at + s[:, None], mask=right_inside, other=0.0)
    for first in range(0, c, block_c):
        if in_one:
            left = tl.load(left_at + first * depth + s[None, :], mask=left_inside, other=0.0)
            outer = tl.dot(left, right, input_precision=precision)
        else:
            outer = tl.zeros((block_i * block_c, block_j * d), tl.float32)
            for first_s in range(0, depth, block_s):
                s = first_s + tl.arange(0, block_s)
                left = tl.load(left_at + first * depth + s[None, :], mask=left_inside, other=0.0)
                right = tl.load(right_at + s[:, None], mask=right_inside, other=0.0)
                outer = tl.dot(left, right, outer, input_precision=precision)
        outer = _exchanged(outer.to(left_at.dtype.element_ty), block_i, block_c, block_j, d)
        channel = first * d + tl.arange(0, block_c * d)[:, None]
        weight = tl.load(weight_at + z * (c * d) + channel)
        total = tl.dot(outer, weight, total, input_precision=precision)
    total = tl.reshape(total + tl.load(offset_at + z).to(tl.float32), (block_i, block_j, c_z)) * inverse[:, :, None]
    edge = (b * size_i + i[:, None]) * size_j + j[None, :]
    inside = (i < size_i)[:, None] & (j < size_j)[None, :]
    tl.store(inverse_at + edge, inverse, mask=inside)
    y_at += edge[:, :, None] * c_z + tl.arange(0, c_z)[None, None, :]
    tl.store(y_at, total.to(y_at.dtype.element_ty), mask=inside[:, :, None])


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
    # Names are those for the left operand, which has rows i and channels c; the right one has columns and channels d.
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
        grad_outer = _exchanged(grad_outer, block_own, block_other, block_c, d)
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
        outer = _exchanged(outer.to(left_at.dtype.element_ty), block_i, block_c, block_j, d)
        i, j = first_i + edge // block_j, first_j + edge % block_j
        grad_y_offset = ((b * size_i + i) * size_j + j)[:, None] * c_z + z[None, :]
        grad_y = tl.load(grad_y_at + grad_y_offset, mask=((i < size_i) & (j < size_j))[:, None], other=0.0)
        total = tl.dot(tl.trans(grad_y), outer, total, input_precision=precision)
        total_offset += tl.sum(grad_y.to(tl.float32), 0)
    channel = first_c * d + tl.arange(0, block_c * d)
    sums_at += tl.program_id(1) * (c_z * (c * d + 1))
    tl.store(sums_at + z[:, None] * (c * d) + channel[None, :], total)
    # All programs of the same edges find the same sum.
    if first_c == 0:
        tl.store(sums_at + c_z * c * d + z, total_offset)


def _rows(operand: Tensor) -> Tensor:
    """Return [b i s c] as [b i c s], with sequences contiguous and padded with zeros to whole blocks."""
    rows = operand.transpose(2, 3)
    missing = -rows.shape[3] % _SEQUENCES
    return torch.nn.functional.pad(rows, (0, missing)).contiguous() if missing else rows.contiguous()


def _forward_tiles(left: Tensor) -> dict[str, Any]:
    """Return tile sizes and launch options; `in_one` if a tile has all sequences.

    Such tiles read the right operand once, and the next chunk of the left one is loaded during the product. Deeper
    alignments have enough blocks of sequences to overlap loads and products within a chunk.
    """
    if left.dtype == torch.float32:
        return {"block_i": 8, "block_j": 4, "block_c": 4, "block_s": 32, "in_one": False, **_FLOAT32}
    if left.shape[3] <= 128:
        return {"block_i": 16, "block_j": 8, "block_c": 4, "block_s": left.shape[3], "in_one": True, **_HALF}
    return {"block_i": 16, "block_j": 8, "block_c": 8, "block_s": 64, "in_one": False, **_HALF}


def _operand_tiles(operand: Tensor) -> dict[str, Any]:
    """Return tile sizes for an operand's gradient [b i c s]: 8 channels, or 4 where 8 would leave processors idle."""
    b, size, c, depth = operand.shape
    if operand.dtype == torch.float32:
        return {"block_own": 8, "block_other": 4, "block_c": 2, "block_s": 64, **_FLOAT32}
    block_s = min(depth, 128)
    programs = b * cdiv(size, 16) * (c // 8) * cdiv(depth, block_s)
    block_c = 8 if programs >= _PROGRAMS else 4
    return {"block_own": 16, "block_other": 4, "block_c": block_c, "block_s": block_s, **_HALF}


def _weight_tiles(left: Tensor) -> dict[str, Any]:
    depth = left.shape[3]
    if left.dtype == torch.float32:
        return {"block_i": 8, "block_j": 4, "block_c": 4, "block_s": 32, "in_one": False, **_FLOAT32}
    return {"block_i": 16, "block_j": 4, "block_c": 8, "block_s": min(depth, 128), "in_one": depth <= 128, **_HALF}


def _operand_gradient(
    grad_y: Tensor, weight: Tensor, own_rows: Tensor, other_rows: Tensor, sequences: int, *, transposed: bool
) -> Tensor:
    """Return the gradient of the operand with rows `own_rows`: [b i s c] of the left one, [b s j d] of the right one.

    `transposed` is true for the right one, whose rows are the columns of `grad_y`.
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


class _OuterProductMean(torch.autograd.Function):
    """The outer product mean, which saves both operands with sequences last and one number per edge."""

    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        left_mask: Tensor,
        right_mask: Tensor,
        weight: Tensor,
        offset: Tensor,
    ) -> Tensor:
        b, size_i, sequences, c = left.shape
        size_j, d, c_z = right.shape[2], right.shape[3], len(weight)
        left_rows, right_rows = _rows(left), _rows(right.transpose(1, 2))
        y = left.new_empty(b, size_i, size_j, c_z)
        inverse = torch.empty(b, size_i, size_j, dtype=torch.float32, device=left.device)
        tiles = _forward_tiles(left_rows)
        _forward[(cdiv(size_i, tiles["block_i"]) * cdiv(size_j, tiles["block_j"]), b)](
            left_rows,
            right_rows,
            left_mask,
            right_mask,
            weight,
            offset,
            y,
            inverse,
            size_i,
            size_j,
            left_rows.shape[3],
            sequences,
            *left_mask.stride(),
            *right_mask.stride(),
            COUNT_FLOOR,
            c=c,
            d=d,
            c_z=c_z,
            **tiles,
        )
        ctx.save_for_backward(left_rows, right_rows, inverse, weight, offset)
        ctx.sequences = sequences
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        left_rows, right_rows, inverse, weight, offset = ctx.saved_tensors
        b, size_i, c, depth = left_rows.shape
        size_j, d, c_z = right_rows.shape[1], right_rows.shape[2], len(weight)
        needs_left, needs_right, *_ = ctx.needs_input_grad
        # Divided by the count in float32 and rounded once for all three kernels.
        mean = left_rows.new_empty(b, size_i, size_j, c_z)
        torch.mul(grad_y, inverse[..., None], out=mean)
        grad_left = (
            _operand_gradient(mean, weight, left_rows, right_rows, ctx.sequences, transposed=False)
            if needs_left
            else None
        )
        grad_right = (
            _operand_gradient(mean, weight, right_rows, left_rows, ctx.sequences, transposed=True)
            if needs_right
            else None
        )
        grad_weight = grad_offset = None
        if any(ctx.needs_input_grad[4:]):
            tiles = _weight_tiles(left_rows)
            chunks = c // tiles["block_c"]
            edges = b * cdiv(size_i, tiles["block_i"]) * cdiv(size_j, tiles["block_j"])
            sums = min(max(1, _PROGRAMS // chunks), edges)
            numbers = weight.numel() + offset.numel()
            partial_sums = torch.empty(sums, numbers, dtype=torch.float32, device=weight.device)
            _backward_of_weight[(chunks, sums)](
                mean,
                left_rows,
                right_rows,
                partial_sums,
                b,
                size_i,
                size_j,
                depth,
                c=c,
                d=d,
                c_z=c_z,
                **tiles,
            )
            grad_weight, grad_offset = summed(partial_sums, weight, offset)
        return grad_left, grad_right, None, None, grad_weight, grad_offset


def outer_product_mean_triton(
    left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor, out: Affine
) -> Tensor:
    """Compute `outer_product_mean` on a CUDA device."""
    return _OuterProductMean.apply(
        left,
        right,
        left_mask,
        right_mask,
        out.weight.to(left.dtype).contiguous(),
        out.bias,
    )
