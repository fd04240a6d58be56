"""Layer norms of positions, in loops that Numba compiles."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.compiled.elements import read, write
from helixfold.ops.cpu.compiled.threads import OPTIONS, Rows, arguments, loop, run
from helixfold.ops.weights import Affine

_EPS = np.float32(EPS)
# Positions that a thread takes at a time.
_POSITIONS = 256


@njit(forceinline=True, **OPTIONS)
def statistics(values, channels, size):
    """Return the mean and the reciprocal deviation of a position's channels."""
    total = np.float32(0)
    for c in range(channels):
        total += read(values, c, size)
    mean = total / np.float32(channels)
    squares = np.float32(0)
    for c in range(channels):
        centred = read(values, c, size) - mean
        squares += centred * centred
    return mean, np.float32(1) / np.sqrt(squares / np.float32(channels) + _EPS)


def _normalised(size: int, out_size: int, has_affine: int) -> Rows:
    def rows(call, start, stop):
        x, row_stride, stride, columns, channels, out, means, scales = arguments(call, 0, 8)
        factors, offsets = arguments(call, 8, 2)
        for position in range(start, stop):
            values = x + size * (position // columns * row_stride + position % columns * stride)
            mean, scale = statistics(values, channels, size)
            result = out + out_size * position * channels
            for c in range(channels):
                value = (read(values, c, size) - mean) * scale
                if has_affine:
                    value = value * read(factors, c, 4) + read(offsets, c, 4)
                write(result, c, out_size, value)
            write(means, position, 4, mean)
            write(scales, position, 4, scale)

    return rows


def _gradient(size: int, gradient_size: int, has_affine: int) -> Rows:
    def rows(call, start, stop):
        gradient, x, row_stride, stride, columns, channels, means, scales = arguments(call, 0, 8)
        out, out_row_stride, out_stride, factors, sums = arguments(call, 8, 5)
        # Of the gradients of factors and offsets: each part of the positions has its own.
        factor_sums = sums + 4 * 2 * (start // _POSITIONS) * channels
        offset_sums = factor_sums + 4 * channels
        grads = np.empty(channels, np.float32)
        for position in range(start, stop):
            row, column = position // columns, position % columns
            values = x + size * (row * row_stride + column * stride)
            result = out + size * (row * out_row_stride + column * out_stride)
            given = gradient + gradient_size * position * channels
            mean, scale = read(means, position, 4), read(scales, position, 4)
            total, slope = np.float32(0), np.float32(0)
            if has_affine:
                for c in range(channels):
                    grad = read(given, c, gradient_size)
                    write(factor_sums, c, 4, read(factor_sums, c, 4) + grad * (read(values, c, size) - mean) * scale)
                    write(offset_sums, c, 4, read(offset_sums, c, 4) + grad)
            for c in range(channels):
                grad = read(given, c, gradient_size)
                if has_affine:
                    grad *= read(factors, c, 4)
                grads[c] = grad
                total += grad
                slope += grad * (read(values, c, size) - mean)
            total /= np.float32(channels)
            slope *= scale * scale / np.float32(channels)
            for c in range(channels):
                write(result, c, size, (grads[c] - total - (read(values, c, size) - mean) * slope) * scale)

    return rows


def normalised(x: Tensor, dtype: torch.dtype, norm: Affine | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return normalised positions [m, c] in this dtype, and their means and reciprocal deviations [m, 1] in float32.

    `x` is [m, c] or [n, k, c] with any distances of rows and columns. Scale and offset of `norm`, in float32, are
    applied if it is given.
    """
    row_stride, stride, columns, positions = positions_of(x)
    values = torch.empty(positions, x.shape[-1], dtype=dtype)
    mean, scale = torch.empty(2, positions, 1)
    outs = values.data_ptr(), mean.data_ptr(), scale.data_ptr()
    affine = (0, 0) if norm is None or norm.bias is None else (norm.weight.data_ptr(), norm.bias.data_ptr())
    address = loop(_normalised, x.itemsize, dtype.itemsize, int(norm is not None))
    run(address, positions, _POSITIONS, x.data_ptr(), row_stride, stride, columns, x.shape[-1], *outs, *affine)
    return values, mean, scale


def write_gradient(
    gradient: Tensor, x: Tensor, mean: Tensor, scale: Tensor, out: Tensor, norm: Affine | None = None
) -> tuple[Tensor, Tensor]:
    """Write the gradient of `x` into `out`, of the same shape, from the one of what `normalised` returned [m, c].

    Return the gradients of the norm's scale and offset, or tensors without elements if none is given.
    """
    row_stride, stride, columns, positions = positions_of(x)
    channels = x.shape[-1]
    parts = 0 if norm is None else -(-positions // _POSITIONS)
    sums = torch.zeros(parts, 2, channels)
    inputs = gradient.data_ptr(), x.data_ptr(), row_stride, stride, columns, channels, mean.data_ptr(), scale.data_ptr()
    outs = out.data_ptr(), *positions_of(out)[:2], 0 if norm is None else norm.weight.data_ptr(), sums.data_ptr()
    address = loop(_gradient, x.itemsize, gradient.itemsize, int(norm is not None))
    run(address, positions, _POSITIONS, *inputs, *outs)
    grad_scale, grad_offset = sums.sum(0)
    return grad_scale, grad_offset


def positions_of(x: Tensor) -> tuple[int, int, int, int]:
    """Return the distances of rows and of columns, the number of columns, and that of positions."""
    if x.ndim == 2:
        return 0, x.stride(0), len(x), len(x)
    return x.stride(0), x.stride(1), x.shape[1], len(x) * x.shape[1]
