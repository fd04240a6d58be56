"""Gates of attention, which turn heads [n, h, k, d] into channels [(n k), (h d)], in loops compiled by Numba.

For global attention, with one query per row, heads are [n, h, 1, d].
"""

import numpy as np
import torch
from torch import Tensor

from helixfold.ops.cpu.compiled.elements import clear, read, sigmoid, write
from helixfold.ops.cpu.compiled.threads import Rows, arguments, loop, run

# Positions that a thread computes at a time.
_POSITIONS = 256


def _gated(size: int, channels: int) -> Rows:
    def rows(call, start, stop):
        attended, logits, stride, out, heads, keys, queries = arguments(call, 0, 7)
        for position in range(start, stop):
            row, query = position // keys, position % keys % queries
            for head in range(heads):
                values = attended + size * ((row * heads + head) * queries + query) * channels
                gates = logits + size * (position * stride + head * channels)
                result = out + size * (position * heads + head) * channels
                for c in range(channels):
                    write(result, c, size, read(values, c, size) * sigmoid(read(gates, c, size)))

    return rows


def _attended_gradient(size: int, channels: int) -> Rows:
    def rows(call, start, stop):
        gradient, logits, stride, out, heads, keys = arguments(call, 0, 6)
        for position in range(start, stop):
            row, key = position // keys, position % keys
            for head in range(heads):
                grads = gradient + size * (position * heads + head) * channels
                gates = logits + size * (position * stride + head * channels)
                result = out + size * ((row * heads + head) * keys + key) * channels
                for c in range(channels):
                    write(result, c, size, read(grads, c, size) * sigmoid(read(gates, c, size)))

    return rows


def _attended_gradient_sums(size: int) -> Rows:
    def rows(call, start, stop):
        gradient, logits, stride, sums, width, keys, parts = arguments(call, 0, 7)
        for part in range(start, stop):
            row, first = part // parts, part % parts * _POSITIONS
            total = sums + 4 * part * width
            clear(total, width)
            for key in range(first, min(first + _POSITIONS, keys)):
                grads = gradient + size * (row * keys + key) * width
                gates = logits + size * (row * keys + key) * stride
                for c in range(width):
                    write(total, c, 4, read(total, c, 4) + read(grads, c, size) * sigmoid(read(gates, c, size)))

    return rows


def _logits_gradient(size: int, channels: int) -> Rows:
    def rows(call, start, stop):
        attended, logits, stride, gradient, gated, out, out_stride, heads, keys, queries = arguments(call, 0, 10)
        for position in range(start, stop):
            row, query = position // keys, position % keys % queries
            for head in range(heads):
                values = attended + size * ((row * heads + head) * queries + query) * channels
                gates = logits + size * (position * stride + head * channels)
                grads = gradient + size * (position * heads + head) * channels
                gated_values = gated + size * (position * heads + head) * channels
                result = out + size * (position * out_stride + head * channels)
                for c in range(channels):
                    gate = sigmoid(read(gates, c, size))
                    value = read(values, c, size) * gate
                    write(gated_values, c, size, value)
                    write(result, c, size, read(grads, c, size) * value * (np.float32(1) - gate))

    return rows


def write_gated(attended: Tensor, logits: Tensor, out: Tensor) -> None:
    """Write gated values [m, h*d] into `out`."""
    n, h, queries, d = attended.shape
    sizes = attended.data_ptr(), logits.data_ptr(), logits.stride(0), out.data_ptr(), h, len(logits) // n, queries
    run(loop(_gated, out.itemsize, d), len(logits), _POSITIONS, *sizes)


def write_attended_gradient(gradient: Tensor, logits: Tensor, out: Tensor) -> None:
    """Write the gradient of attended values [n, h, k, d] into `out` given the gradient of the gated values."""
    n, h, queries, d = out.shape
    keys = len(logits) // n
    inputs = gradient.data_ptr(), logits.data_ptr(), logits.stride(0)
    if queries == keys:
        run(loop(_attended_gradient, out.itemsize, d), n * keys, _POSITIONS, *inputs, out.data_ptr(), h, keys)
        return
    parts = -(-keys // _POSITIONS)
    sums = torch.empty(n, parts, h * d)
    address = loop(_attended_gradient_sums, out.itemsize)
    run(address, n * parts, 1, *inputs, sums.data_ptr(), h * d, keys, parts)
    out.copy_(sums.sum(1).view(out.shape))


def write_logits_gradient(attended: Tensor, logits: Tensor, gradient: Tensor, gated: Tensor, out: Tensor) -> None:
    """Write the gradient of the logits into `out` and the gated values into `gated`, given the latter's gradient."""
    n, h, queries, d = attended.shape
    inputs = attended.data_ptr(), logits.data_ptr(), logits.stride(0), gradient.data_ptr()
    outs = gated.data_ptr(), out.data_ptr(), out.stride(0)
    address = loop(_logits_gradient, out.itemsize, d)
    run(address, len(logits), _POSITIONS, *inputs, *outs, h, len(logits) // n, queries)
