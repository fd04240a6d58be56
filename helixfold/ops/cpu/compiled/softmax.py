"""The softmax of attention logits in loops compiled by Numba."""

import numpy as np
from torch import Tensor

from helixfold.ops.cpu.compiled.elements import exp, larger, ordered, read, unordered, write
from helixfold.ops.cpu.compiled.threads import Rows, arguments, loop, run

# Initial maximum of logits as integers (`ordered`).
_MIN_INT32 = np.int32(-(2**31))
# Logits that a thread computes at a time.
_LOGITS = 2**15


def _softmax(size: int, bias_size: int, mask_size: int) -> Rows:
    def rows(call, start, stop):
        logits, heads, queries, keys, bias, head_stride, query_stride, mask, mask_stride = arguments(call, 0, 9)
        memory = np.empty(keys, np.float32)
        for row in range(start, stop):
            n, h, q = row // (heads * queries), row // queries % heads, row % queries
            weights = logits + size * row * keys
            row_bias = bias + bias_size * (h * head_stride + q * query_stride)
            row_mask = mask + mask_size * n * mask_stride
            largest = _MIN_INT32
            for k in range(keys):
                logit = read(weights, k, size)
                if bias_size:
                    logit += read(row_bias, k, bias_size)
                if mask_size:
                    logit += read(row_mask, k, mask_size)
                memory[k] = logit
                largest = larger(largest, ordered(logit))
            maximum = unordered(largest)
            total = np.float32(0)
            for k in range(keys):
                weight = exp(memory[k] - maximum)
                memory[k] = weight
                total += weight
            scale = np.float32(1) / total
            for k in range(keys):
                write(weights, k, size, memory[k] * scale)

    return rows


def _gradient(size: int, bias_size: int) -> Rows:
    def rows(call, start, stop):
        gradient, weights, count, heads, queries, keys, bias, head_stride, query_stride = arguments(call, 0, 9)
        for row in range(start, stop):
            h, q = row // queries, row % queries
            row_bias = bias + bias_size * (h * head_stride + q * query_stride)
            # One thread computes all rows of the stream for a row of the bias, so no other thread adds to its gradient.
            for n in range(count):
                at = size * keys * ((n * heads + h) * queries + q)
                total = np.float32(0)
                for k in range(keys):
                    total += read(gradient + at, k, size) * read(weights + at, k, size)
                for k in range(keys):
                    value = read(weights + at, k, size) * (read(gradient + at, k, size) - total)
                    write(gradient + at, k, size, value)
                    if bias_size:
                        write(row_bias, k, 4, read(row_bias, k, 4) + value)

    return rows


def write_softmax(logits: Tensor, bias: Tensor | None, mask_bias: Tensor | None, heads: int) -> None:
    """Overwrite logits [(n h), q, k] with their softmax, after adding a bias [h, q, k] and a mask bias [n, k]."""
    _, q, k = logits.shape
    biases = (0, 0, 0) if bias is None else (bias.data_ptr(), *bias.stride()[:2])
    mask_biases = (0, 0) if mask_bias is None else (mask_bias.data_ptr(), mask_bias.stride(0))
    sizes = (0 if each is None else each.itemsize for each in (bias, mask_bias))
    rows, step = len(logits) * q, max(1, _LOGITS // k)
    run(loop(_softmax, logits.itemsize, *sizes), rows, step, logits.data_ptr(), heads, q, k, *biases, *mask_biases)


def write_gradient(gradient: Tensor, weights: Tensor, grad_bias: Tensor | None, heads: int) -> None:
    """Overwrite the gradient of the weights [(n h), q, k] with the gradient of the logits.

    Add the gradient of the bias to `grad_bias` [h, q, k].
    """
    _, q, k = weights.shape
    n = len(weights) // heads
    biases = (0, 0, 0) if grad_bias is None else (grad_bias.data_ptr(), *grad_bias.stride()[:2])
    address = loop(_gradient, gradient.itemsize, 0 if grad_bias is None else 4)
    rows, step = heads * q, max(1, _LOGITS // (k * n))
    run(address, rows, step, gradient.data_ptr(), weights.data_ptr(), n, heads, q, k, *biases)
