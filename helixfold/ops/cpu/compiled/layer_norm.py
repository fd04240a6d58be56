"""Layer norms of positions, in loops that Numba compiles."""

import numpy as np
import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.compiled.elements import read, write
from helixfold.ops.cpu.compiled.threads import Rows, arguments, loop, run

_EPS = np.float32(EPS)
# Positions that a thread takes at a time.
_POSITIONS = 256


def _normalised(size: int, out_size: int) -> Rows:
    def rows(call, start, stop):
        x, row_stride, stride, columns, channels, out, means, scales = arguments(call, 0, 8)
        for position in range(start, stop):
            values = x + size * (position // columns * row_stride + position % columns * stride)
            total = np.float32(0)
            for c in range(channels):
                total += read(values, c, size)
            mean = total / np.float32(channels)
            squares = np.float32(0)
            for c in range(channels):
                centred = read(values, c, size) - mean
                squares += centred * centred
            scale = np.float32(1) / np.sqrt(squares / np.float32(channels) + _EPS)
            for c in range(channels):
                write(out + out_size * position * channels, c, out_size, (read(values, c, size) - mean) * scale)
            write(means, position, 4, mean)
            write(scales, position, 4, scale)

    return rows


def _gradient(size: int, gradient_size: int) -> Rows:
    def rows(call, start, stop):
        gradient, x, row_stride, stride, columns, channels, means, scales = arguments(call, 0, 8)
        out, out_row_stride, out_stride = arguments(call, 8, 3)
        for position in range(start, stop):
            row, column = position // columns, position % columns
            values = x + size * (row * row_stride + column * stride)
            result = out + size * (row * out_row_stride + column * out_stride)
            grads = gradient + gradient_size * position * channels
            mean, scale = read(means, position, 4), read(scales, position, 4)
            total, slope = np.float32(0), np.float32(0)
            for c in range(channels):
                grad = read(grads, c, gradient_size)
                total += grad
                slope += grad * (read(values, c, size) - mean)
            total /= np.float32(channels)
            slope *= scale * scale / np.float32(channels)
            for c in range(channels):
                grad = read(grads, c, gradient_size) - total - (read(values, c, size) - mean) * slope
                write(result, c, size, grad * scale)

    return rows


def normalised(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return normalised positions [m, c] in this dtype, and their means and reciprocal deviations [m, 1] in float32.

    `x` is [m, c] or [n, k, c] with any distances of rows and columns.
    """
    row_stride, stride, columns, positions = _positions(x)
    values = torch.empty(positions, x.shape[-1], dtype=dtype)
    mean, scale = torch.empty(2, positions, 1)
    out = values.data_ptr(), mean.data_ptr(), scale.data_ptr()
    address = loop(_normalised, x.itemsize, dtype.itemsize)
    run(address, positions, _POSITIONS, x.data_ptr(), row_stride, stride, columns, x.shape[-1], *out)
    return values, mean, scale


def write_gradient(gradient: Tensor, x: Tensor, mean: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write the gradient of `x` into `out`, of the same shape, from the one of the normalised positions [m, c]."""
    row_stride, stride, columns, positions = _positions(x)
    inputs = gradient.data_ptr(), x.data_ptr(), row_stride, stride, columns, x.shape[-1]
    outs = out.data_ptr(), *_positions(out)[:2]
    address = loop(_gradient, x.itemsize, gradient.itemsize)
    run(address, positions, _POSITIONS, *inputs, mean.data_ptr(), scale.data_ptr(), *outs)


def _positions(x: Tensor) -> tuple[int, int, int, int]:
    """Return the distances of rows and of columns, the number of columns, and that of positions."""
    if x.ndim == 2:
        return 0, x.stride(0), len(x), len(x)
    return x.stride(0), x.stride(1), x.shape[1], len(x) * x.shape[1]
