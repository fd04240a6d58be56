"""The outer product mean as Triton kernels that do not store the c * d channels of an edge.

In the forward pass, a tile of 16 x 8 edges reads its columns of both operands and the whole output weight. With s =
128, c = d = 32 and c_z = 128 in bfloat16, these are 128 + 64 + 256 KiB from the L2 cache for 67 MFLOP, or 146
operations per byte. For 256 x 256 edges, the L2 cache provides 0.23 GB, 0.13 GB of it for the weight, and memory 22 MB.
Storing the channels would write and read 134 MB. Deeper alignments read the right operand for every chunk of channels
of the left operand, and have 91 operations per byte at s = 512.
"""

from typing import Any, no_type_check

import torch
from torch import Tensor

from helixfold.ops.constants import COUNT_FLOOR
from helixfold.ops.residual import Residual
from helixfold.ops.triton.language import FLOAT32, HALF, cdiv, exchanged, jit, kernel, multiplies_from_shared_memory, tl
from helixfold.ops.triton.outer_product_backward import operand_gradient, parameter_gradients
from helixfold.ops.weights import Affine

# Sequences are padded to whole blocks, so that rows of sequences begin at multiples of 128 bytes.
_SEQUENCES = 64


@jit
@no_type_check
def _edges(x, b, i, j, c_z: tl.constexpr):
    """Return the addresses of the channels of edges (i, j) of a pair, a tuple of its address and strides."""
    row, column = i.to(tl.int64)[:, None, None] * x[2], j.to(tl.int64)[None, :, None] * x[3]
    return x[0] + b * x[1] + row + column + tl.arange(0, c_z)[None, None, :]


@kernel
@no_type_check
def _forward(
    left_at,
    right_at,
    left_mask_at,
    right_mask_at,
    weight_at,
    offset_at,
    stream,
    y_to,
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
    """Store the map of the mean outer products of a tile of edges, plus an optional stream."""
    b = tl.program_id(1).to(tl.int64)
    first_i = tl.program_id(0) // tl.cdiv(size_j, block_j) * block_i
    first_j = tl.program_id(0) % tl.cdiv(size_j, block_j) * block_j
    i, j = first_i + tl.arange(0, block_i), first_j + tl.arange(0, block_j)
    left_mask_at += b * left_mask_b + i.to(tl.int64)[:, None] * left_mask_i
    right_mask_at += b * right_mask_b + j.to(tl.int64)[:, None] * right_mask_j
    count = tl.zeros((block_i, block_j), tl.float32)
    # With stages, the masks of the next block are loaded ahead; only loops with a matrix product have them by default.
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
        outer = exchanged(outer.to(left_at.dtype.element_ty), block_i, block_c, block_j, d)
        channel = first * d + tl.arange(0, block_c * d)[:, None]
        weight = tl.load(weight_at + z * (c * d) + channel)
        total = tl.dot(outer, weight, total, input_precision=precision)
    total = tl.reshape(total + tl.load(offset_at + z).to(tl.float32), (block_i, block_j, c_z)) * inverse[:, :, None]
    edge = (b * size_i + i[:, None]) * size_j + j[None, :]
    inside = (i < size_i)[:, None] & (j < size_j)[None, :]
    tl.store(inverse_at + edge, inverse, mask=inside)
    if stream is not None:
        total += tl.load(_edges(stream, b, i, j, c_z), mask=inside[:, :, None], other=0.0).to(tl.float32)
    tl.store(_edges(y_to, b, i, j, c_z), total.to(y_to[0].dtype.element_ty), mask=inside[:, :, None])


def _rows(operand: Tensor) -> Tensor:
    """Return [b i s c] as [b i c s], with sequences contiguous and padded with zeros to whole blocks."""
    rows = operand.transpose(2, 3)
    missing = -rows.shape[3] % _SEQUENCES
    return torch.nn.functional.pad(rows, (0, missing)).contiguous() if missing else rows.contiguous()


def _forward_tiles(left: Tensor) -> dict[str, Any]:
    """Return tile sizes and launch options; `in_one` is whether a tile has all sequences.

    Such tiles read the right operand once, and load the next chunk of the left operand during the product. They need
    more shared memory than GeForce GPUs have. Deeper alignments have enough blocks of sequences to overlap loads and
    products within a chunk.
    """
    if left.dtype == torch.float32:
        return {"block_i": 8, "block_j": 4, "block_c": 4, "block_s": 32, "in_one": False, **FLOAT32}
    sizes = {"block_i": 16, "block_j": 8, **HALF}
    if left.shape[3] <= 128 and multiplies_from_shared_memory(left.device):
        return {**sizes, "block_c": 2, "block_s": left.shape[3], "in_one": True, "num_stages": 3}
    return {**sizes, "block_c": 4, "block_s": 64, "in_one": False}


class _OuterProductMean(torch.autograd.Function):
    """The outer product mean, plus an optional stream.

    It saves both operands with sequences last, and one number per edge.
    """

    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        left_mask: Tensor,
        right_mask: Tensor,
        weight: Tensor,
        offset: Tensor,
        stream: Tensor | None,
        in_place: bool,
    ) -> Tensor:
        """Return the mapped means of outer products, plus `stream` if passed, in its memory if `in_place`."""
        b, size_i, sequences, c = left.shape
        size_j, d, c_z = right.shape[2], right.shape[3], len(weight)
        left_rows, right_rows = _rows(left), _rows(right.transpose(1, 2))
        y = stream if stream is not None and in_place else left.new_empty(b, size_i, size_j, c_z)
        inverse = torch.empty(b, size_i, size_j, dtype=torch.float32, device=left.device)
        tiles = _forward_tiles(left_rows)
        _forward[(cdiv(size_i, tiles["block_i"]) * cdiv(size_j, tiles["block_j"]), b)](
            left_rows,
            right_rows,
            left_mask,
            right_mask,
            weight,
            offset,
            None if stream is None else (stream, *stream.stride()[:3]),
            (y, *y.stride()[:3]),
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
        """Return the gradients of both operands, the parameters of the map and the stream."""
        left_rows, right_rows, inverse, weight, offset = ctx.saved_tensors
        (b, size_i), size_j, c_z = left_rows.shape[:2], right_rows.shape[1], len(weight)
        needs_left, needs_right, *_, needs_stream, _ = ctx.needs_input_grad
        # Divide by the count in float32 and round once for all three kernels.
        mean = left_rows.new_empty(b, size_i, size_j, c_z)
        torch.mul(grad_y, inverse[..., None], out=mean)
        grad_left = (
            operand_gradient(mean, weight, left_rows, right_rows, ctx.sequences, transposed=False)
            if needs_left
            else None
        )
        grad_right = (
            operand_gradient(mean, weight, right_rows, left_rows, ctx.sequences, transposed=True)
            if needs_right
            else None
        )
        grad_weight = grad_offset = None
        if any(ctx.needs_input_grad[4:6]):
            grad_weight, grad_offset = parameter_gradients(mean, left_rows, right_rows, weight, offset)
        return grad_left, grad_right, None, None, grad_weight, grad_offset, grad_y if needs_stream else None, None


def outer_product_mean_triton(
    left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor, out: Affine
) -> Tensor:
    """Compute `outer_product_mean` on a CUDA device."""
    weight = out.weight.to(left.dtype).contiguous()
    return _OuterProductMean.apply(left, right, left_mask, right_mask, weight, out.bias, None, False)


def outer_product_mean_adding_triton(
    residual: Residual, left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor, out: Affine
) -> Tensor | None:
    """Compute `outer_product_mean` on a CUDA device and add it to a stream; return None if this is not supported.

    Dropout, and a stream of another dtype or without contiguous channels, are not supported.
    """
    stream, dropout_mask, in_place = residual
    if dropout_mask is not None or stream.dtype != left.dtype or stream.stride(-1) != 1:
        return None
    weight = out.weight.to(left.dtype).contiguous()
    return _OuterProductMean.apply(left, right, left_mask, right_mask, weight, out.bias, stream, in_place)
