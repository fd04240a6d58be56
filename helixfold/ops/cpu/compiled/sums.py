"""Sums of matrices and of their rows, in loops compiled by Numba."""

import numpy as np
import torch
from torch import Tensor

from helixfold.ops.cpu.compiled.elements import clear, read, write
from helixfold.ops.cpu.compiled.threads import Rows, arguments, loop, run

# Columns that are summed together, so that whole cache lines are read.
_COLUMNS = 64
# Elements of a matrix that a thread adds at a time, and positions that it sums at a time.
_ELEMENTS, _POSITIONS = 2**14, 256


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
        # Partial sums of a few rows are added up, because rounding errors grow with the number of terms of a sum.
        totals, terms = np.empty(_COLUMNS, np.float32), np.empty(_COLUMNS, np.float32)
        for part in range(start, stop):
            first = part * _COLUMNS
            count = min(_COLUMNS, width - first)
            totals[:] = 0
            for begin in range(0, height, _POSITIONS):
                terms[:] = 0
                for row in range(begin, min(begin + _POSITIONS, height)):
                    for column in range(count):
                        terms[column] += read(x + size * (row * stride + first), column, size)
                for column in range(count):
                    totals[column] += terms[column]
            for column in range(count):
                write(sums, first + column, 4, read(sums, first + column, 4) + totals[column])

    return rows


def _weighted_sums(size: int) -> Rows:
    def rows(call, start, stop):
        x, row_stride, stride, keys, width, means, scales, weights, parts, sums = arguments(call, 0, 10)
        for part in range(start, stop):
            row, first = part // parts, part % parts * _POSITIONS
            total = sums + 4 * part * width
            clear(total, width)
            for key in range(first, min(first + _POSITIONS, keys)):
                values, position = x + size * (row * row_stride + key * stride), row * keys + key
                mean, factor = read(means, position, 4), read(scales, position, 4) * read(weights, position, 4)
                for c in range(width):
                    write(total, c, 4, read(total, c, 4) + factor * (read(values, c, size) - mean))

    return rows


def _weighted(size: int) -> Rows:
    def rows(call, start, stop):
        x, weights, keys, width, terms = arguments(call, 0, 5)
        for position in range(start, stop):
            values, weight = x + size * position * width, read(weights, position, 4)
            term = terms + 4 * (position // keys) * width
            for c in range(width):
                write(values, c, size, read(values, c, size) + weight * read(term, c, 4))

    return rows


def _added(size: int) -> Rows:
    def rows(call, start, stop):
        total, term = arguments(call, 0, 2)
        for index in range(start, stop):
            write(total, index, 4, read(total, index, 4) + read(term, index, size))

    return rows


def add(total: Tensor, term: Tensor) -> None:
    """Add a matrix to a float32 sum in place; both are contiguous."""
    run(loop(_added, term.itemsize), total.numel(), _ELEMENTS, total.data_ptr(), term.data_ptr())


def add_row_sums(sums: Tensor, x: Tensor) -> None:
    """Add the sum of each row of a matrix, whose rows or columns are dense, to float32 sums in place."""
    height, width = x.shape
    if x.stride(1) == 1:
        run(loop(_row_sums, x.itemsize), height, 8, x.data_ptr(), x.stride(0), width, sums.data_ptr())
    else:
        parts = -(-height // _COLUMNS)
        run(loop(_column_sums, x.itemsize), parts, 1, x.data_ptr(), x.stride(1), width, height, sums.data_ptr())


def weighted_sums(x: Tensor, mean: Tensor, scale: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of the normalised positions of each row, in float32 [n, c], with weights [n, k].

    `x` is [n, k, c], with any strides of rows and columns, and is normalised with means and scales [(n k), 1].
    """
    n, keys, width = x.shape
    parts = -(-keys // _POSITIONS)
    sums = torch.empty(n, parts, width)
    inputs = x.data_ptr(), *x.stride()[:2], keys, width, mean.data_ptr(), scale.data_ptr(), weights.data_ptr()
    run(loop(_weighted_sums, x.itemsize), n * parts, 1, *inputs, parts, sums.data_ptr())
    return sums.sum(1)


def add_weighted(x: Tensor, weights: Tensor, terms: Tensor) -> None:
    """Add to each position of `x` [(n k), c] its weight [n, k] times the float32 term of its row [n, c]."""
    (_, keys), (positions, width) = weights.shape, x.shape
    inputs = x.data_ptr(), weights.data_ptr(), keys, width, terms.data_ptr()
    run(loop(_weighted, x.itemsize), positions, max(1, _ELEMENTS // width), *inputs)
