"""Gates and layer norms of triangle multiplication, with channels first, in loops compiled by Numba."""

import numpy as np
import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.compiled.elements import read, sigmoid, write
from helixfold.ops.cpu.compiled.threads import Rows, arguments, loop, run

# Added to the variance of channels.
_EPS = np.float32(EPS)
# Channels, and elements of channels-last tensors, that a thread computes at a time.
_CHANNELS, _ELEMENTS = 4, 2**14
# Positions that are normalised together, so that their sums stay in the cache.
_TILE = 512


def _gated(size: int) -> Rows:
    def rows(call, start, stop):
        both, bias, mask, out, stride, channels, positions = arguments(call, 0, 7)
        for c in range(start, stop):
            values, gates = both + size * c * positions, both + size * (channels + c) * positions
            result = out + size * c * stride
            offset, gate_offset = read(bias, c, size), read(bias, channels + c, size)
            for m in range(positions):
                gate = sigmoid(read(gates, m, size) + gate_offset)
                write(result, m, size, (read(values, m, size) + offset) * gate * read(mask, m, size))

    return rows


def _gated_gradient(size: int) -> Rows:
    def rows(call, start, stop):
        both, bias, mask, gradient, stride, channels, positions = arguments(call, 0, 7)
        for c in range(start, stop):
            values, gates = both + size * c * positions, both + size * (channels + c) * positions
            grads = gradient + size * c * stride
            offset, gate_offset = read(bias, c, size), read(bias, channels + c, size)
            for m in range(positions):
                gate = sigmoid(read(gates, m, size) + gate_offset)
                grad = read(grads, m, size) * read(mask, m, size) * gate
                value = read(values, m, size) + offset
                write(values, m, size, grad)
                write(gates, m, size, grad * value * (np.float32(1) - gate))

    return rows


def _gradient_by_result(size: int) -> Rows:
    def rows(call, start, stop):
        logits, bias, mask, gradient, stride, result, result_stride, out = arguments(call, 0, 8)
        channels, positions = arguments(call, 8, 2)
        for c in range(start, stop):
            gates, gate_offset = logits + size * c * positions, read(bias, c, size)
            grads, results = gradient + size * c * stride, result + size * c * result_stride
            grad_values, grad_gates = out + size * c * positions, out + size * (channels + c) * positions
            for m in range(positions):
                gate, grad = sigmoid(read(gates, m, size) + gate_offset), read(grads, m, size)
                write(grad_values, m, size, grad * read(mask, m, size) * gate)
                write(grad_gates, m, size, grad * read(results, m, size) * (np.float32(1) - gate))

    return rows


def _normalised(size: int) -> Rows:
    def rows(call, start, stop):
        x, stride, channels, positions, out, means, scales = arguments(call, 0, 7)
        for tile in range(start, stop):
            first = tile * _TILE
            count = min(_TILE, positions - first)
            mean, scale = means + 4 * first, scales + 4 * first
            for m in range(count):
                write(mean, m, 4, np.float32(0))
                write(scale, m, 4, np.float32(0))
            for c in range(channels):
                values = x + size * (c * stride + first)
                for m in range(count):
                    write(mean, m, 4, read(mean, m, 4) + read(values, m, size))
            for m in range(count):
                write(mean, m, 4, read(mean, m, 4) / np.float32(channels))
            for c in range(channels):
                values = x + size * (c * stride + first)
                for m in range(count):
                    centred = read(values, m, size) - read(mean, m, 4)
                    write(scale, m, 4, read(scale, m, 4) + centred * centred)
            for m in range(count):
                write(scale, m, 4, np.float32(1) / np.sqrt(read(scale, m, 4) / np.float32(channels) + _EPS))
            for c in range(channels):
                values, result = x + size * (c * stride + first), out + size * (c * positions + first)
                for m in range(count):
                    write(result, m, size, (read(values, m, size) - read(mean, m, 4)) * read(scale, m, 4))

    return rows


def _normalised_gradient(size: int) -> Rows:
    def rows(call, start, stop):
        x, stride, channels, positions, gradient, means, scales, out, out_stride = arguments(call, 0, 9)
        totals, slopes = np.empty(_TILE, np.float32), np.empty(_TILE, np.float32)
        for tile in range(start, stop):
            first = tile * _TILE
            count = min(_TILE, positions - first)
            mean, scale = means + 4 * first, scales + 4 * first
            totals[:] = 0
            slopes[:] = 0
            for c in range(channels):
                values, grads = x + size * (c * stride + first), gradient + size * (c * positions + first)
                for m in range(count):
                    grad = read(grads, m, size)
                    totals[m] += grad
                    slopes[m] += grad * (read(values, m, size) - read(mean, m, 4))
            for m in range(count):
                totals[m] /= np.float32(channels)
                slopes[m] *= read(scale, m, 4) * read(scale, m, 4) / np.float32(channels)
            for c in range(channels):
                values, grads = x + size * (c * stride + first), gradient + size * (c * positions + first)
                target = out + size * (c * out_stride + first)
                for m in range(count):
                    centred = read(values, m, size) - read(mean, m, 4)
                    grad = read(grads, m, size) - totals[m] - centred * slopes[m]
                    write(target, m, size, grad * read(scale, m, 4))

    return rows


def _gated_change(size: int) -> Rows:
    def rows(call, start, stop):
        change, row_stride, stride, columns, channels, mapped = arguments(call, 0, 6)
        for position in range(start, stop):
            out = change + size * (position // columns * row_stride + position % columns * stride)
            values = mapped + size * position * channels
            for c in range(channels):
                write(out, c, size, sigmoid(read(out, c, size)) * read(values, c, size))

    return rows


def _gated_change_gradient(size: int) -> Rows:
    def rows(call, start, stop):
        logits, mapped, gradient = arguments(call, 0, 3)
        for m in range(start, stop):
            gate = sigmoid(read(logits, m, size))
            grad, value = gate * read(gradient, m, size), read(mapped, m, size)
            write(mapped, m, size, grad)
            write(logits, m, size, grad * value * (np.float32(1) - gate))

    return rows


def write_gated(both: Tensor, bias: Tensor, mask: Tensor, out: Tensor) -> None:
    """Write gated and masked values into `out` [c, rows, columns], from the values and gate logits `both` [2c, m]."""
    channels, positions = len(out), both.shape[1]
    inputs = both.data_ptr(), bias.data_ptr(), mask.data_ptr()
    address = loop(_gated, both.itemsize)
    run(address, channels, _CHANNELS, *inputs, out.data_ptr(), out.stride(0), channels, positions)


def write_gated_gradient(both: Tensor, bias: Tensor, mask: Tensor, gradient: Tensor) -> None:
    """Overwrite `both` [2c, m] with its gradient, given the gradient [c, rows, columns] of the gated values."""
    channels, positions = len(gradient), both.shape[1]
    inputs = both.data_ptr(), bias.data_ptr(), mask.data_ptr(), gradient.data_ptr(), gradient.stride(0)
    run(loop(_gated_gradient, both.itemsize), channels, _CHANNELS, *inputs, channels, positions)


def gradient_by_result(logits: Tensor, bias: Tensor, mask: Tensor, gradient: Tensor, result: Tensor) -> Tensor:
    """Return the gradient of `both` [2c, m], given the logits [c, m], the gated values and their gradient."""
    channels, positions = logits.shape
    out = logits.new_empty(2 * channels, positions)
    inputs = logits.data_ptr(), bias.data_ptr(), mask.data_ptr(), gradient.data_ptr(), gradient.stride(0)
    results = result.data_ptr(), result.stride(0), out.data_ptr()
    run(loop(_gradient_by_result, out.itemsize), channels, _CHANNELS, *inputs, *results, channels, positions)
    return out


def normalised(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions of `x` [c, rows, columns] normalised [c, m], their means and their scales, both [m].

    Scales are reciprocal standard deviations.
    """
    channels, positions = len(x), x[0].numel()
    out = x.new_empty(channels, positions)
    mean, scale = torch.empty(2, positions)
    outs = out.data_ptr(), mean.data_ptr(), scale.data_ptr()
    tiles = -(-positions // _TILE)
    run(loop(_normalised, x.itemsize), tiles, 1, x.data_ptr(), x.stride(0), channels, positions, *outs)
    return out, mean, scale


def write_normalised_gradient(gradient: Tensor, x: Tensor, mean: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write the gradient of `x` [c, rows, columns] into `out`, given the gradient of normalised positions [c, m]."""
    channels, positions = gradient.shape
    inputs = x.data_ptr(), x.stride(0), channels, positions, gradient.data_ptr(), mean.data_ptr(), scale.data_ptr()
    tiles = -(-positions // _TILE)
    run(loop(_normalised_gradient, x.itemsize), tiles, 1, *inputs, out.data_ptr(), out.stride(0))


def write_gated_change(change: Tensor, mapped: Tensor) -> None:
    """Overwrite logits [rows, columns, c] with the gated values of `mapped` [m, c]."""
    rows, columns, channels = change.shape
    positions, step = rows * columns, max(1, _ELEMENTS // channels)
    strides = change.data_ptr(), *change.stride()[:2], columns, channels
    run(loop(_gated_change, mapped.itemsize), positions, step, *strides, mapped.data_ptr())


def write_gated_change_gradient(logits: Tensor, mapped: Tensor, gradient: Tensor) -> None:
    """Overwrite logits and mapped values, both contiguous, with their gradients.

    `gradient` is the gradient of the result of `write_gated_change`.
    """
    inputs = logits.data_ptr(), mapped.data_ptr(), gradient.data_ptr()
    run(loop(_gated_change_gradient, mapped.itemsize), mapped.numel(), _ELEMENTS, *inputs)
