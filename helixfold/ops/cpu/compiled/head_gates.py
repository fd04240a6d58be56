"""Gates of self-attention, between heads [n, h, k, d] and channels [(n k), (h d)], in loops that Numba compiles."""

import numpy as np
from torch import Tensor

from helixfold.ops.cpu.compiled.elements import read, sigmoid, write
from helixfold.ops.cpu.compiled.threads import Rows, arguments, loop, run

# Positions that a thread takes at a time.
_POSITIONS = 256


def _gated(size: int, channels: int) -> Rows:
    def rows(call, start, stop):
        attended, logits, stride, out, heads, keys = arguments(call, 0, 6)
        for position in range(start, stop):
            row, key = position // keys, position % keys
            for head in range(heads):
                values = attended + size * ((row * heads + head) * keys + key) * channels
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


def _logits_gradient(size: int, channels: int) -> Rows:
    def rows(call, start, stop):
        attended, logits, stride, gradient, gated, out, out_stride, heads, keys = arguments(call, 0, 9)
        for position in range(start, stop):
            row, key = position // keys, position % keys
            for head in range(heads):
                values = attended + size * ((row * heads + head) * keys + key) * channels
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
    n, h, k, d = attended.shape
    sizes = attended.data_ptr(), logits.data_ptr(), logits.stride(0), out.data_ptr(), h, k
    run(loop(_gated, out.itemsize, d), n * k, _POSITIONS, *sizes)


def write_attended_gradient(gradient: Tensor, logits: Tensor, out: Tensor) -> None:
    """Write the gradient of attended values [n, h, k, d] into `out` from that of the gated ones."""
    n, h, k, d = out.shape
    sizes = gradient.data_ptr(), logits.data_ptr(), logits.stride(0), out.data_ptr(), h, k
    run(loop(_attended_gradient, out.itemsize, d), n * k, _POSITIONS, *sizes)


def write_logits_gradient(attended: Tensor, logits: Tensor, gradient: Tensor, gated: Tensor, out: Tensor) -> None:
    """Write the gradient of logits into `out`, and the gated values again, from the gradient of the gated ones."""
    n, h, k, d = attended.shape
    inputs = attended.data_ptr(), logits.data_ptr(), logits.stride(0), gradient.data_ptr()
    address = loop(_logits_gradient, out.itemsize, d)
    run(address, n * k, _POSITIONS, *inputs, gated.data_ptr(), out.data_ptr(), out.stride(0), h, k)
