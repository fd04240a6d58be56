"""Float32 matrix products and transposition in loops compiled by Numba."""

import numpy as np
from torch import Tensor

from helixfold.ops.cpu.blocks import all_slices
from helixfold.ops.cpu.compiled.elements import copy, transpose
from helixfold.ops.cpu.compiled.register_products import IS_WIDE, SIZES, float32_product
from helixfold.ops.cpu.compiled.threads import Rows, arguments, loop, run

# Whether this processor has the instructions for these products, and whether they are faster than oneDNN's for
# row-major matrices, too: with AVX2, 86 to 90 % of a core's peak instead of 48 to 75 %. With AVX-512, they are not.
MULTIPLIES, REPLACES_ONEDNN = 4 in SIZES, not IS_WIDE
# Rows of the left matrix that a thread multiplies at a time, and the terms of their sums.
_ROWS, _TERMS = 96, 128 if IS_WIDE else 512
# Columns of a slab of the right matrix, which stays in the L1 cache.
_COLUMNS = 64 if IS_WIDE else 16
# Maximum elements of the right matrices that are packed at a time.
_PACKED_ELEMENTS = 2**20


def _packed() -> Rows:
    """Pack slabs of columns of the right matrices, so that a slab is contiguous."""

    def rows(call, start, stop):
        right, right_batch, right_stride, column_stride, depth, width, packed = arguments(call, 0, 7)
        slabs = (width + _COLUMNS - 1) // _COLUMNS
        for slab in range(start, stop):
            batch, column = slab // slabs, slab % slabs * _COLUMNS
            columns = min(_COLUMNS, width - column)
            source = right + 4 * (batch * right_batch + column * column_stride)
            target = packed + 4 * slab * depth * _COLUMNS
            if column_stride == 1:
                for term in range(depth):
                    copy(source + 4 * term * right_stride, target + 4 * term * _COLUMNS, 4 * columns)
            else:
                transpose(source, column_stride, columns, depth, target, _COLUMNS, 4)

    return rows


def _products() -> Rows:
    def rows(call, start, stop):
        left, left_batch, row_stride, stride, packed, out, out_batch, out_stride = arguments(call, 0, 8)
        height, depth, width, add, bias, relu = arguments(call, 8, 6)
        slabs = (width + _COLUMNS - 1) // _COLUMNS
        blocks = (height + _ROWS - 1) // _ROWS
        memory = np.empty(_ROWS * (_TERMS + _COLUMNS), np.float32)
        transposed_left = memory.ctypes.data
        tile = transposed_left + 4 * _ROWS * _TERMS
        for block in range(start, stop):
            batch, row = block // blocks, block % blocks * _ROWS
            count = min(_ROWS, height - row)
            for first in range(0, depth, _TERMS):
                terms = min(_TERMS, depth - first)
                lefts, left_stride = left + 4 * (batch * left_batch + row * row_stride + first * stride), row_stride
                if stride != 1:
                    transpose(lefts, stride, terms, count, transposed_left, terms, 4)
                    lefts, left_stride = transposed_left, terms
                for slab in range(slabs):
                    column = slab * _COLUMNS
                    columns = min(_COLUMNS, width - column)
                    right = packed + 4 * ((batch * slabs + slab) * depth + first) * _COLUMNS
                    target = out + 4 * (batch * out_batch + row * out_stride + column)
                    sums, sums_stride = (bias + 4 * column, 0) if bias else (0, 0)
                    if add or first:
                        sums, sums_stride = target, out_stride
                    is_positive = relu and first + terms == depth
                    if columns % 8 == 0:
                        rest = count, columns, sums, sums_stride, is_positive
                        float32_product(lefts, left_stride, 1, right, _COLUMNS, terms, target, out_stride, *rest)
                        continue
                    # Columns after the last one of the matrix are not used.
                    all_columns = (columns + 7) // 8 * 8
                    if sums:
                        for index in range(count):
                            copy(sums + 4 * index * sums_stride, tile + 4 * index * _COLUMNS, 4 * columns)
                        sums, sums_stride = tile, _COLUMNS
                    rest = count, all_columns, sums, sums_stride, is_positive
                    float32_product(lefts, left_stride, 1, right, _COLUMNS, terms, tile, _COLUMNS, *rest)
                    for index in range(count):
                        copy(tile + 4 * index * _COLUMNS, target + 4 * index * out_stride, 4 * columns)
        # This use keeps Numba from freeing the memory earlier.
        memory[0] = 0

    return rows


def _transposed(size: int) -> Rows:
    def rows(call, start, stop):
        x, stride, height, width, out = arguments(call, 0, 5)
        for part in range(start, stop):
            first = part * _ROWS
            count = min(_ROWS, height - first)
            transpose(x + size * first * stride, stride, count, width, out + size * first, height, size)

    return rows


def write_products(
    left: Tensor, right: Tensor, out: Tensor, *, add: bool = False, bias: Tensor | None = None, relu: bool = False
) -> None:
    """Write the products of float32 matrices [b, m, k] and [b, k, n] into `out` [b, m, n], or with `add` add them.

    With `bias` [n], add it to every row, and with `relu` write the positive part. The rows or the columns of `left` and
    of `right`, and the rows of `out`, are dense; k is not 0.
    """
    b, m, n = out.shape
    bias = None if bias is None else bias.float().contiguous()
    slabs = -(-n // _COLUMNS)
    columns = slabs * _COLUMNS
    packed = out.new_empty(min(b * left.shape[2] * columns, max(_PACKED_ELEMENTS, columns)))
    for terms in all_slices(left.shape[2], len(packed) // columns):
        depth, is_first, is_last = terms.stop - terms.start, terms.start == 0, terms.stop == left.shape[2]
        for batch in all_slices(b, len(packed) // (depth * columns)):
            lefts, rights, outs = left[batch, :, terms], right[batch, terms], out[batch]
            count = len(outs)
            run(loop(_packed), count * slabs, 1, *_strided(rights), depth, n, packed.data_ptr())
            numbers = *_strided(lefts), packed.data_ptr(), *_strided(outs)[:3], m, depth, n, add or not is_first
            own_bias = 0 if bias is None or not is_first else bias.data_ptr()
            run(loop(_products), count * -(-m // _ROWS), 1, *numbers, own_bias, relu and is_last)


def _strided(x: Tensor) -> tuple[int, ...]:
    """Return the address and the strides of matrices."""
    return x.data_ptr(), *x.stride()


def transposed(x: Tensor) -> Tensor:
    """Return the contiguous transpose of a matrix with dense rows."""
    height, width = x.shape
    out = x.new_empty(width, height)
    sizes = x.data_ptr(), x.stride(0), height, width, out.data_ptr()
    run(loop(_transposed, x.itemsize), -(-height // _ROWS), 1, *sizes)
    return out
