"""Layer norms of positions and maps to a few channels, in loops that Numba compiles.

Products with so few outputs would take longer than the norm, whose result need not leave the first cache.
"""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from helixfold.ops.cpu.compiled.elements import read, write
from helixfold.ops.cpu.compiled.layer_norm import positions_of, statistics
from helixfold.ops.cpu.compiled.threads import OPTIONS, Rows, arguments, loop, run

MOST_OUTPUTS = 16
# Positions that a thread takes at a time, and at most how many times as many sums of the weights' gradients there are.
_POSITIONS = 256
_PARTS = 32


@njit(forceinline=True, **OPTIONS)
def _normalise(values, channels, size, row):
    """Write a normalised position in float32, and return its reciprocal deviation."""
    mean, scale = statistics(values, channels, size)
    for c in range(channels):
        write(row, c, 4, (read(values, c, size) - mean) * scale)
    return scale


def _mapped(size: int) -> Rows:
    def rows(call, start, stop):
        x, row_stride, stride, columns, channels, outputs, weight, bias, out = arguments(call, 0, 9)
        memory = np.empty(channels, np.float32)
        row = memory.ctypes.data
        for position in range(start, stop):
            values = x + size * (position // columns * row_stride + position % columns * stride)
            _normalise(values, channels, size, row)
            for output in range(outputs):
                factors, total = weight + 4 * output * channels, np.float32(0)
                for c in range(channels):
                    total += read(row, c, 4) * read(factors, c, 4)
                write(out, position * outputs + output, size, total + read(bias, output, 4))
        # Used last, so that it is not freed before.
        memory[0] = 0

    return rows


def _gradients(size: int) -> Rows:
    def rows(call, start, stop):
        x, row_stride, stride, columns, channels, outputs, weight, gradient = arguments(call, 0, 8)
        out, out_row_stride, out_stride, sums, step = arguments(call, 8, 5)
        # Of the gradients of weight and bias: each part of the positions has its own.
        weight_sums = sums + 4 * (start // step) * outputs * (channels + 1)
        bias_sums = weight_sums + 4 * outputs * channels
        memory = np.empty(2 * channels, np.float32)
        row = memory.ctypes.data
        grads = row + 4 * channels
        for position in range(start, stop):
            at, column = position // columns, position % columns
            scale = _normalise(x + size * (at * row_stride + column * stride), channels, size, row)
            given = gradient + size * position * outputs
            for c in range(channels):
                write(grads, c, 4, np.float32(0))
            for output in range(outputs):
                grad, factors = read(given, output, size), weight + 4 * output * channels
                its_sums = weight_sums + 4 * output * channels
                for c in range(channels):
                    write(grads, c, 4, read(grads, c, 4) + grad * read(factors, c, 4))
                    write(its_sums, c, 4, read(its_sums, c, 4) + grad * read(row, c, 4))
                write(bias_sums, output, 4, read(bias_sums, output, 4) + grad)
            total, slope = np.float32(0), np.float32(0)
            for c in range(channels):
                total += read(grads, c, 4)
                slope += read(grads, c, 4) * read(row, c, 4)
            total /= np.float32(channels)
            slope /= np.float32(channels)
            result = out + size * (at * out_row_stride + column * out_stride)
            for c in range(channels):
                write(result, c, size, (read(grads, c, 4) - total - read(row, c, 4) * slope) * scale)
        # Used last, so that it is not freed before.
        memory[0] = 0

    return rows


def write_mapped(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    """Write the map of the normalised positions of `x` [n, k, c] into `out` [n, k, outputs], which is contiguous.

    Weight [outputs, c] and bias are float32 and contiguous.
    """
    row_stride, stride, columns, positions = positions_of(x)
    given = x.data_ptr(), row_stride, stride, columns, x.shape[-1], len(weight), weight.data_ptr(), bias.data_ptr()
    run(loop(_mapped, x.itemsize), positions, _POSITIONS, *given, out.data_ptr())


def write_gradients(gradient: Tensor, x: Tensor, weight: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Write the gradient of `x` into `out`, and return those of weight and bias, from that of `write_mapped`'s result.

    The given gradient [n, k, outputs] is contiguous.
    """
    row_stride, stride, columns, positions = positions_of(x)
    outputs, channels = weight.shape
    step = max(_POSITIONS, -(-positions // _PARTS))
    sums = torch.zeros(-(-positions // step), outputs * (channels + 1))
    given = x.data_ptr(), row_stride, stride, columns, channels, outputs, weight.data_ptr(), gradient.data_ptr()
    outs = out.data_ptr(), *positions_of(out)[:2], sums.data_ptr(), step
    run(loop(_gradients, x.itemsize), positions, step, *given, *outs)
    grad_weight, grad_bias = sums.sum(0).split((outputs * channels, outputs))
    return grad_weight.view(outputs, channels), grad_bias
