"""Float32 matrix products and transposition in loops compiled by Numba."""

import numpy as np
from torch import Tensor

from helixfold.ops.cpu.compiled.elements import copy, transpose
from helixfold.ops.cpu.compiled.register_products import SIZES, product
from helixfold.ops.cpu.compiled.threads import Rows, arguments, loop, run

# Whether these loops are used for float32 products on this processor.
MULTIPLIES = 4 in SIZES
# Rows, columns and terms of a part of a product. The part of the right matrix stays in the L1 cache.
_ROWS, _COLUMNS, _TERMS = 128, 64, 128


def _products() -> Rows:
    def rows(call, start, stop):
        left, left_batch, row_stride, stride, right, right_batch, right_stride, column_stride = arguments(call, 0, 8)
        out, out_batch, out_stride, add, height, depth, width = arguments(call, 8, 7)
        panels = (width + _COLUMNS - 1) // _COLUMNS
        parts = (height + _ROWS - 1) // _ROWS * panels
        memory = np.empty(_TERMS * _COLUMNS, np.float32)
        packed = memory.ctypes.data
        for part in range(start, stop):
            batch, row, column = part // parts, part % parts // panels * _ROWS, part % panels * _COLUMNS
            columns = min(_COLUMNS, width - column)
            block = out + 4 * (batch * out_batch + row * out_stride + column)
            for first in range(0, depth, _TERMS):
                terms = min(_TERMS, depth - first)
                source = right + 4 * (batch * right_batch + first * right_stride + column * column_stride)
                if column_stride == 1:
                    for term in range(terms):
                        copy(source + 4 * term * right_stride, packed + 4 * term * columns, 4 * columns)
                else:
                    transpose(source, column_stride, columns, terms, packed, columns, 4)
                lefts, count = left + 4 * (batch * left_batch + row * row_stride + first * stride), height - row
                count = min(_ROWS, count)
                # Add later terms to the first ones.
                adds = add + first
                product(lefts, row_stride, stride, packed, columns, terms, block, out_stride, count, columns, adds, 4)
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


def write_products(left: Tensor, right: Tensor, out: Tensor, *, add: bool) -> None:
    """Write the products of float32 matrices [b, m, k] and [b, k, n] into `out` [b, m, n], or with `add` add them.

    The rows or the columns of `right`, and the rows of `out`, are dense; n is a multiple of 8 and k is not 0.
    """
    b, m, n = out.shape
    parts = b * -(-m // _ROWS) * -(-n // _COLUMNS)
    strides = left.data_ptr(), *left.stride(), right.data_ptr(), *right.stride(), out.data_ptr(), *out.stride()[:2]
    run(loop(_products), parts, 1, *strides, add, m, left.shape[2], n)


def transposed(x: Tensor) -> Tensor:
    """Return the contiguous transpose of a matrix with dense rows."""
    height, width = x.shape
    out = x.new_empty(width, height)
    sizes = x.data_ptr(), x.stride(0), height, width, out.data_ptr()
    run(loop(_transposed, x.itemsize), -(-height // _ROWS), 1, *sizes)
    return out
