"""Sums of matrices and of their rows, in loops that Numba compiles."""

import numpy as np
from torch import Tensor

from helixfold.ops.cpu.compiled.elements import read, write
from helixfold.ops.cpu.compiled.threads import Rows, arguments, loop, run

# Columns that are summed together, so that whole lines of the cache are read.
_COLUMNS = 64
# Elements of a matrix that a thread adds at a time.
_ELEMENTS = 2**14


def _row_sums(size: int) -> Rows:
    def rows(call, start, stop):
        x, stride, width, sums = arguments(call, 0, 4)
        for row in range(start, stop):
            total = np.float32(0)
            for column in range(width):
                total += read(x + size * row * stride, column, size)
            write(sums, row, 4, read(sums, row, 4) + total)

    return rows


def _column_sums(size: int) -> Rows:
    def rows(call, start, stop):
        x, stride, height, width, sums = arguments(call, 0, 5)
        totals = np.empty(_COLUMNS, np.float32)
        for part in range(start, stop):
            first = part * _COLUMNS
            count = min(_COLUMNS, width - first)
            totals[:] = 0
            for row in range(height):
                for column in range(count):
                    totals[column] += read(x + size * (row * stride + first), column, size)
            for column in range(count):
                write(sums, first + column, 4, read(sums, first + column, 4) + totals[column])

    return rows


def _added(size: int) -> Rows:
    def rows(call, start, stop):
        total, term = arguments(call, 0, 2)
        for index in range(start, stop):
            write(total, index, 4, read(total, index, 4) + read(term, index, size))

    return rows


def add(total: Tensor, term: Tensor) -> None:
    """Add a matrix to a sum in float32, both contiguous."""
    run(loop(_added, term.itemsize), total.numel(), _ELEMENTS, total.data_ptr(), term.data_ptr())


def add_row_sums(sums: Tensor, x: Tensor) -> None:
    """Add the sum of each row of a matrix, whose rows or columns are dense, to sums in float32."""
    height, width = x.shape
    if x.stride(1) == 1:
        run(loop(_row_sums, x.itemsize), height, 8, x.data_ptr(), x.stride(0), width, sums.data_ptr())
    else:
        parts = -(-height // _COLUMNS)
        run(loop(_column_sums, x.itemsize), parts, 1, x.data_ptr(), x.stride(1), width, height, sums.data_ptr())
