"""Layer norms of positions and maps to a few channels, in loops compiled by Numba.

As matrix products, maps to few channels would take longer than the norm. Here the normalised position stays in the L1
cache.
"""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.compiled.elements import read, write
from helixfold.ops.cpu.compiled.threads import OPTIONS, Rows, arguments, loop, run
from helixfold.ops.weights import Affine

# Added to the variance of channels.
_EPS = np.float32(EPS)
# Maximum outputs of a map for which these loops are faster than matrix products.
MAX_OUTPUTS = 16
# Positions that a thread computes at a time, and the maximum number of partial sums of the gradients of the weights.
_POSITIONS = 256
_PARTS = 32


@njit(forceinline=True, **OPTIONS)
def statistics(values, channels, size):
    """Return the mean and the reciprocal standard deviation of the channels of a position."""
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
        # Each part of the positions has its own sums of the gradients of factors and offsets.
        factor_sums = sums + 4 * 2 * (start // _POSITIONS) * channels
        offset_sums = factor_sums + 4 * channels
        grads = np.empty(channels, np.float32)
        for position in range(start, stop):
            row, column = position // columns, position % columns
            values = x + size * (row * row_stride + column * stride)
            result = out + size * (row * out_row_stride + column * out_stride)
            grad_normed = gradient + gradient_size * position * channels
            mean, scale = read(means, position, 4), read(scales, position, 4)
            total, slope = np.float32(0), np.float32(0)
            if has_affine:
                for c in range(channels):
                    grad = read(grad_normed, c, gradient_size)
                    write(factor_sums, c, 4, read(factor_sums, c, 4) + grad * (read(values, c, size) - mean) * scale)
                    write(offset_sums, c, 4, read(offset_sums, c, 4) + grad)
            for c in range(channels):
                grad = read(grad_normed, c, gradient_size)
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
    """Return positions normalised over channels [m, c], their means, and their reciprocal standard deviations.

    Positions are in `dtype`, the others [m, 1] in float32. `x` is [m, c] or [n, k, c] with any strides of rows and
    columns. The scale and offset of `norm`, in float32, are applied if it is given.
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
    """Write the gradient of the input `x` of `normalised` into `out`, given the gradient of its output [m, c].

    Return the gradients of the scale and offset of `norm`, or zeros if it is None.
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
    """Return the strides of rows and columns in elements, the number of columns and the number of positions.

    A matrix [m, c] counts as one row with m columns.
    """
    if x.ndim == 2:
        return 0, x.stride(0), len(x), len(x)
    return x.stride(0), x.stride(1), x.shape[1], len(x) * x.shape[1]


@njit(forceinline=True, **OPTIONS)
def _normalise(values, channels, size, row):
    """Write a normalised position in float32, and return its reciprocal standard deviation."""
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
        # This use keeps Numba from freeing the memory earlier.
        memory[0] = 0

    return rows


def _gradients(size: int) -> Rows:
    def rows(call, start, stop):
        x, row_stride, stride, columns, channels, outputs, weight, gradient = arguments(call, 0, 8)
        out, out_row_stride, out_stride, sums, step = arguments(call, 8, 5)
        # Each part of the positions has its own sums of the gradients of weight and bias.
        weight_sums = sums + 4 * (start // step) * outputs * (channels + 1)
        bias_sums = weight_sums + 4 * outputs * channels
        memory = np.empty(2 * channels, np.float32)
        row = memory.ctypes.data
        grads = row + 4 * channels
        for position in range(start, stop):
            at, column = position // columns, position % columns
            scale = _normalise(x + size * (at * row_stride + column * stride), channels, size, row)
            grad_mapped = gradient + size * position * outputs
            for c in range(channels):
                write(grads, c, 4, np.float32(0))
            for output in range(outputs):
                grad, factors = read(grad_mapped, output, size), weight + 4 * output * channels
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
        # This use keeps Numba from freeing the memory earlier.
        memory[0] = 0

    return rows


def write_mapped(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    """Write the map of the normalised positions of `x` [n, k, c] into `out` [n, k, outputs].

    `out`, weight [outputs, c] and bias are contiguous; weight and bias are float32.
    """
    row_stride, stride, columns, positions = positions_of(x)
    inputs = x.data_ptr(), row_stride, stride, columns, x.shape[-1], len(weight), weight.data_ptr(), bias.data_ptr()
    run(loop(_mapped, x.itemsize), positions, _POSITIONS, *inputs, out.data_ptr())


def write_gradients(gradient: Tensor, x: Tensor, weight: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Write the gradient of `x` into `out`, and return the gradients of weight and bias.

    `gradient` [n, k, outputs], contiguous, is the gradient of the output of `write_mapped`.
    """
    row_stride, stride, columns, positions = positions_of(x)
    outputs, channels = weight.shape
    step = max(_POSITIONS, -(-positions // _PARTS))
    sums = torch.zeros(-(-positions // step), outputs * (channels + 1))
    inputs = x.data_ptr(), row_stride, stride, columns, channels, outputs, weight.data_ptr(), gradient.data_ptr()
    outs = out.data_ptr(), *positions_of(out)[:2], sums.data_ptr(), step
    run(loop(_gradients, x.itemsize), positions, step, *inputs, *outs)
    grad_weight, grad_bias = sums.sum(0).split((outputs * channels, outputs))
    return grad_weight.view(outputs, channels), grad_bias
