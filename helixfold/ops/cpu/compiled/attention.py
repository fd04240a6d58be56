"""Attention in loops compiled by Numba, in which the logits of a head stay in the cache.

Factors of matrix products consist of units of four bytes, as explained in `register_products`: a row of `width` logits
has `units` of them.
"""

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from torch import Tensor

from helixfold.ops.cpu.compiled.elements import (
    TILE,
    exp,
    larger,
    ordered,
    read,
    rounded_bits,
    transpose,
    unordered,
    write,
    write_pair,
)
from helixfold.ops.cpu.compiled.register_products import SIZES, product
from helixfold.ops.cpu.compiled.threads import OPTIONS, Rows, arguments, loop, run

_INT32, _INT64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS, _UNITS, _SHORTS = (ir.VectorType(element, TILE) for element in (_FLOAT, _INT32, ir.IntType(16)))


@intrinsic
def write_pairs(
    context: Any,
    rows: Any,
    slopes: Any,
    scales: Any,
    means: Any,
    width: Any,
    weight_units: Any,
    slope_units: Any,
    rounded_slopes: Any,
    first: Any,
) -> Any:
    """Compute the weights and the gradients of the logits of two rows of `width`, from column `first` on.

    `rows` are the exponentials and `slopes` the gradients of the weights, in float32. Each row has a scale and the mean
    of its slopes. The gradients of the logits overwrite the slopes and are written, rounded, to `rounded_slopes`. Both
    rows together become one row of units of weights, and one of gradients. All arguments except `width` and `first` are
    addresses.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows, slopes, scales, means, width, weight_units, slope_units, rounded_slopes, first = args

        def place(base: Any, index: Any, element_size: int, kind: Any) -> Any:
            address = builder.add(base, builder.mul(index, ir.Constant(_INT64, element_size)))
            return builder.inttoptr(address, kind.as_pointer())

        def of_row(base: Any, row: int) -> Any:
            """Return a vector with every element equal to number `row` of the float32 numbers at `base`."""
            one = builder.load(place(base, ir.Constant(_INT64, row), 4, _FLOAT), typ=_FLOAT, align=4)
            vector = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), one, ir.Constant(_INT32, 0))
            return builder.shuffle_vector(vector, vector, ir.Constant(_UNITS, [0] * TILE))

        weights, gradients = [], []
        for row, index in enumerate((first, builder.add(first, width))):
            there = place(slopes, index, 4, _FLOATS)
            weight = builder.fmul(
                builder.load(place(rows, index, 4, _FLOATS), typ=_FLOATS, align=4), of_row(scales, row)
            )
            slope = builder.fsub(builder.load(there, typ=_FLOATS, align=4), of_row(means, row))
            gradient = builder.fmul(weight, slope)
            builder.store(gradient, there, align=4)
            weights.append(rounded_bits(builder, weight))
            gradients.append(rounded_bits(builder, gradient))
            builder.store(gradients[row], place(rounded_slopes, index, 2, _SHORTS), align=2)
        for (one, other), target in ((weights, weight_units), (gradients, slope_units)):
            high = builder.shl(builder.zext(other, _UNITS), ir.Constant(_UNITS, [16] * TILE))
            builder.store(builder.or_(builder.zext(one, _UNITS), high), place(target, first, 4, _UNITS), align=4)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 9), generate


# Initial maximum of logits as integers (`ordered`).
_MIN_INT32 = np.int32(-(2**31))
# Queries whose logits are computed together and stay in the L1 cache.
_QUERIES = 16
# Weights of a head whose gradients are summed together; with the gradients of the logits, they stay in the L2 cache.
_WEIGHTS = 2**16


@njit(**OPTIONS)
def _as_columns(source, stride, rows, units, target, width):
    """Write the transpose of a matrix of units, padded with zeros to the width."""
    transpose(source, stride, rows, units, target, width, 4)
    for unit in range(units):
        for row in range(rows, width):
            write(target, unit * width + row, 4, np.float32(0))


@njit(forceinline=True, **OPTIONS)
def _as_rows(source, stride, rows, columns, target, source_size, size):
    """Write a matrix as units. In bfloat16, two rows share a row of units, and a missing row is zeros."""
    if size == 4:
        for row in range(rows):
            for column in range(columns):
                write(target, row * columns + column, 4, read(source, row * stride + column, source_size))
    else:
        for row in range(0, rows - 1, 2):
            first, second = source + source_size * row * stride, source + source_size * (row + 1) * stride
            for column in range(columns):
                value = read(second, column, source_size)
                write_pair(target, row // 2 * columns + column, read(first, column, source_size), value)
        if rows % 2:
            last = source + source_size * (rows - 1) * stride
            for column in range(columns):
                write_pair(target, rows // 2 * columns + column, read(last, column, source_size), np.float32(0))


@njit(forceinline=True, **OPTIONS)
def _write_rows(source, rows, columns, target, stride, size):
    """Write a float32 matrix rounded to elements of `size` bytes."""
    for row in range(rows):
        for column in range(columns):
            write(target + size * row * stride, column, size, read(source + 4 * row * columns, column, 4))


@njit(forceinline=True, **OPTIONS)
def _largest(row, keys, bias, bias_size, mask, mask_size):
    """Add the bias and the mask bias to logits, unless their size is 0, and return the maximum logit."""
    largest = _MIN_INT32
    for k in range(keys):
        logit = read(row, k, 4)
        if bias_size:
            logit += read(bias, k, bias_size)
        if mask_size:
            logit += read(mask, k, mask_size)
        write(row, k, 4, logit)
        largest = larger(largest, ordered(logit))
    return unordered(largest)


@njit(forceinline=True, **OPTIONS)
def _total(row, keys):
    """Return the sum of float32 numbers.

    It is a loop of its own, because the order of additions would depend on what else a loop computes.
    """
    total = np.float32(0)
    for k in range(keys):
        total += read(row, k, 4)
    return total


def _forward(size: int, bias_size: int, mask_size: int) -> Rows:
    pair = 4 // size

    def rows(call, start, stop):
        heads, queries, keys, d, c = arguments(call, 0, 5)
        query, query_n, query_h, query_q, key, key_n, key_h, key_k = arguments(call, 5, 8)
        value, value_n, value_h, value_k, out, out_n, out_h, out_q = arguments(call, 13, 8)
        bias, bias_h, bias_q, mask, mask_n = arguments(call, 21, 5)
        # At least one column after the keys, for the zero that completes a unit.
        width = (keys + TILE) // TILE * TILE
        units, key_units, d_units = width // pair, (keys + pair - 1) // pair, d // pair
        memory = np.empty(d_units * width + key_units * c + _QUERIES * (width + units + c + 1), np.float32)
        keys_as_columns = memory.ctypes.data
        values_as_rows = keys_as_columns + 4 * d_units * width
        logits = values_as_rows + 4 * key_units * c
        weights = logits + 4 * _QUERIES * width
        results = weights + 4 * _QUERIES * units
        scales = results + 4 * _QUERIES * c
        for matrix in range(start, stop):
            n, h = matrix // heads, matrix % heads
            _as_columns(key + size * (n * key_n + h * key_h), key_k // pair, keys, d_units, keys_as_columns, width)
            _as_rows(value + size * (n * value_n + h * value_h), value_k, keys, c, values_as_rows, size, size)
            for first in range(0, queries, _QUERIES):
                count = min(_QUERIES, queries - first)
                tile, stride = query + size * (n * query_n + h * query_h + first * query_q), query_q // pair
                product(tile, stride, 1, keys_as_columns, width, d_units, logits, width, count, width, 0, size)
                for q in range(count):
                    row, exponentials = logits + 4 * q * width, weights + 4 * q * units
                    row_bias = bias + bias_size * (h * bias_h + (first + q) * bias_q)
                    maximum = _largest(row, keys, row_bias, bias_size, mask + mask_size * n * mask_n, mask_size)
                    total = np.float32(0)
                    for k in range(keys):
                        exponential = exp(read(row, k, 4) - maximum)
                        write(exponentials, k, size, exponential)
                        if size == 2:
                            total += exponential
                    if size == 4:
                        total = _total(exponentials, keys)
                    else:
                        write(exponentials, keys, size, np.float32(0))
                    # Divide the results, which are fewer than the weights, by the sum.
                    write(scales, q, 4, np.float32(1) / total)
                product(weights, units, 1, values_as_rows, c, key_units, results, c, count, c, 0, size)
                target = out + size * (n * out_n + h * out_h + first * out_q)
                for q in range(count):
                    scale = read(scales, q, 4)
                    for channel in range(c):
                        write(target + size * q * out_q, channel, size, read(results + 4 * q * c, channel, 4) * scale)
        # This use keeps Numba from freeing the memory earlier.
        memory[0] = 0

    return rows


def _backward(size: int, bias_size: int, mask_size: int) -> Rows:
    pair = 4 // size

    def rows(call, start, stop):
        heads, queries, keys, d, c = arguments(call, 0, 5)
        query, query_n, query_h, query_q, key, key_n, key_h, key_k = arguments(call, 5, 8)
        value, value_n, value_h, value_k, out, out_n, out_h, out_q = arguments(call, 13, 8)
        bias, bias_h, bias_q, mask, mask_n = arguments(call, 21, 5)
        grad, grad_n, grad_h, grad_q, grad_query, grad_query_n, grad_query_h, grad_query_q = arguments(call, 26, 8)
        grad_key, grad_key_n, grad_key_h, grad_key_k = arguments(call, 34, 4)
        grad_value, grad_value_n, grad_value_h, grad_value_k = arguments(call, 38, 4)
        grad_bias, grad_bias_group, grad_bias_h, grad_bias_q, samples, groups = arguments(call, 42, 6)
        width = (keys + TILE) // TILE * TILE
        units, key_units, d_units, c_units = width // pair, (keys + pair - 1) // pair, d // pair, c // pair
        # Queries in a part, whose weights and slopes (the gradients of the logits) are stored until they are summed.
        part = min((queries + 1) // 2 * 2, max(_QUERIES, _WEIGHTS // width // _QUERIES * _QUERIES))
        part_units, max_channels = part // pair, max(c, d)
        memory = np.empty(
            (d_units + c_units) * width
            + (key_units + part_units) * (d + c)
            + _QUERIES * (2 * width + units + max_channels + 2)
            + 2 * part_units * width
            + (d + c + max_channels) * width,
            np.float32,
        )
        keys_as_columns = memory.ctypes.data
        values_as_columns = keys_as_columns + 4 * d_units * width
        keys_as_rows = values_as_columns + 4 * c_units * width
        values_as_rows = keys_as_rows + 4 * key_units * d
        queries_as_columns = values_as_rows + 4 * key_units * c
        grads_as_columns = queries_as_columns + 4 * part_units * d
        logits = grads_as_columns + 4 * part_units * c
        slopes = logits + 4 * _QUERIES * width
        rounded = slopes + 4 * _QUERIES * width
        scales = rounded + 4 * _QUERIES * units
        means = scales + 4 * _QUERIES
        results = means + 4 * _QUERIES
        weights_as_rows = results + 4 * _QUERIES * max_channels
        slopes_as_rows = weights_as_rows + 4 * part_units * width
        sum_keys = slopes_as_rows + 4 * part_units * width
        sum_values = sum_keys + 4 * d * width
        transposed = sum_values + 4 * c * width
        for task in range(start, stop):
            group, h = task // heads, task % heads
            for n in range(samples * group // groups, samples * (group + 1) // groups):
                key_head, value_head = key + size * (n * key_n + h * key_h), value + size * (n * value_n + h * value_h)
                _as_columns(key_head, key_k // pair, keys, d_units, keys_as_columns, width)
                _as_columns(value_head, value_k // pair, keys, c_units, values_as_columns, width)
                _as_rows(key_head, key_k, keys, d, keys_as_rows, size, size)
                if out:
                    _as_rows(value_head, value_k, keys, c, values_as_rows, size, size)
                for start_of_part in range(0, queries, part):
                    in_part = min(part, queries - start_of_part)
                    query_part = query + size * (n * query_n + h * query_h + start_of_part * query_q)
                    grad_part = grad + size * (n * grad_n + h * grad_h + start_of_part * grad_q)
                    transpose(query_part, query_q, in_part, d, queries_as_columns, part, size)
                    transpose(grad_part, grad_q, in_part, c, grads_as_columns, part, size)
                    if size == 2 and in_part % 2:
                        for channel in range(d):
                            write(queries_as_columns, channel * part + in_part, size, np.float32(0))
                        for channel in range(c):
                            write(grads_as_columns, channel * part + in_part, size, np.float32(0))
                    for start_in_part in range(0, in_part, _QUERIES):
                        first, count = start_of_part + start_in_part, min(_QUERIES, in_part - start_in_part)
                        at = 4 * (start_in_part // pair) * width
                        tile_weights, tile_slopes = weights_as_rows + at, slopes_as_rows + at
                        if size == 4:
                            logits, slopes = tile_weights, tile_slopes
                        tile, stride = query_part + size * start_in_part * query_q, query_q // pair
                        right, depth = keys_as_columns, d_units
                        product(tile, stride, 1, right, width, depth, logits, width, count, width, 0, size)
                        tile, stride = grad_part + size * start_in_part * grad_q, grad_q // pair
                        right, depth = values_as_columns, c_units
                        product(tile, stride, 1, right, width, depth, slopes, width, count, width, 0, size)
                        for q in range(count):
                            row, slope = logits + 4 * q * width, slopes + 4 * q * width
                            row_bias = bias + bias_size * (h * bias_h + (first + q) * bias_q)
                            maximum = _largest(row, keys, row_bias, bias_size, mask + mask_size * n * mask_n, mask_size)
                            total, mean = np.float32(0), np.float32(0)
                            for k in range(keys):
                                exponential = exp(read(row, k, 4) - maximum)
                                write(row, k, 4, exponential)
                                mean += exponential * read(slope, k, 4)
                                if size == 2:
                                    total += exponential
                            if size == 4:
                                total = _total(row, keys)
                            scale = np.float32(1) / total
                            write(scales, q, 4, scale)
                            write(means, q, 4, mean * scale)
                        if out:
                            # The same operations as in the forward pass, so that the rounding is equal.
                            left, left_units = logits, width
                            if size == 2:
                                left, left_units = rounded, units
                                for q in range(count):
                                    for k in range(keys):
                                        write(rounded + 4 * q * units, k, size, read(logits + 4 * q * width, k, 4))
                                    write(rounded + 4 * q * units, keys, size, np.float32(0))
                            product(left, left_units, 1, values_as_rows, c, key_units, results, c, count, c, 0, size)
                            target = out + size * (n * out_n + h * out_h + first * out_q)
                            for q in range(count):
                                scale = read(scales, q, 4)
                                for channel in range(c):
                                    result = read(results + 4 * q * c, channel, 4)
                                    write(target + size * q * out_q, channel, size, result * scale)
                        if size == 4:
                            for q in range(count):
                                row, slope = logits + 4 * q * width, slopes + 4 * q * width
                                scale, mean = read(scales, q, 4), read(means, q, 4)
                                for k in range(keys):
                                    weight = read(row, k, 4) * scale
                                    write(row, k, 4, weight)
                                    write(slope, k, 4, weight * (read(slope, k, 4) - mean))
                            left, left_units = slopes, width
                        else:
                            if count % 2:
                                # A row of zeros completes the pair.
                                for k in range(width):
                                    write(logits + 4 * count * width, k, 4, np.float32(0))
                                    write(slopes + 4 * count * width, k, 4, np.float32(0))
                                write(scales, count, 4, np.float32(0))
                                write(means, count, 4, np.float32(0))
                            for q in range(0, count, 2):
                                rows_of_two, slopes_of_two = logits + 4 * q * width, slopes + 4 * q * width
                                numbers = scales + 4 * q, means + 4 * q, width
                                targets = tile_weights + 2 * q * width, tile_slopes + 2 * q * width
                                short = rounded + 4 * q * units
                                for k in range(0, width, TILE):
                                    write_pairs(rows_of_two, slopes_of_two, *numbers, *targets, short, k)
                            left, left_units = rounded, units
                        if grad_bias:
                            for q in range(count):
                                slope = slopes + 4 * q * width
                                at = group * grad_bias_group + h * grad_bias_h + (first + q) * grad_bias_q
                                sums = grad_bias + 4 * at
                                for k in range(keys):
                                    write(sums, k, 4, read(sums, k, 4) + read(slope, k, 4))
                        product(left, left_units, 1, keys_as_rows, d, key_units, results, d, count, d, 0, size)
                        target = grad_query + size * (n * grad_query_n + h * grad_query_h + first * grad_query_q)
                        _write_rows(results, count, d, target, grad_query_q, size)
                    # Add later parts to the first one.
                    terms, adds = (in_part + pair - 1) // pair, start_of_part
                    left, right, sums = queries_as_columns, slopes_as_rows, sum_keys
                    product(left, part_units, 1, right, width, terms, sums, width, d, width, adds, size)
                    left, right, sums = grads_as_columns, weights_as_rows, sum_values
                    product(left, part_units, 1, right, width, terms, sums, width, c, width, adds, size)
                transpose(sum_keys, width, d, keys, transposed, d, 4)
                target = grad_key + size * (n * grad_key_n + h * grad_key_h)
                _write_rows(transposed, keys, d, target, grad_key_k, size)
                transpose(sum_values, width, c, keys, transposed, c, 4)
                target = grad_value + size * (n * grad_value_n + h * grad_value_h)
                _write_rows(transposed, keys, c, target, grad_value_k, size)
        # This use keeps Numba from freeing the memory earlier.
        memory[0] = 0

    return rows


def computes(*heads: Tensor | None) -> bool:
    """Return whether the loops support these heads [n, h, q, c]; None is ignored.

    Elements must have a size in `SIZES`, channels must be a multiple of 8, and units must be aligned to four bytes.
    """
    return all(
        x.itemsize in SIZES
        and x.shape[-1] % 8 == 0
        and x.data_ptr() % 4 == 0
        and not any(stride * x.itemsize % 4 for stride in x.stride()[:3])
        for x in heads
        if x is not None
    )


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask_bias: Tensor | None, bias: Tensor | None, out: Tensor
) -> None:
    """Write the result of attention without a gate into `out` [n, h, q, c]."""
    n, h, q, d = query.shape
    k, c = value.shape[2:]
    heads = *_strided(query), *_strided(key), *_strided(value), *_strided(out)
    address = loop(_forward, query.itemsize, _size(bias), _size(mask_bias))
    run(address, n * h, 1, h, q, k, d, c, *heads, *_strided(bias, 2), *_strided(mask_bias, 1))


def write_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask_bias: Tensor | None,
    bias: Tensor | None,
    gradient: Tensor,
    out: Tensor | None,
    grad_heads: tuple[Tensor, Tensor, Tensor],
    grad_bias: Tensor | None,
) -> None:
    """Write the gradients of query, key and value into `grad_heads`, and add the bias's gradient to `grad_bias`.

    `gradient` is the gradient of the result. Unless `out` is None, also write the result of attention into it.
    """
    n, h, q, d = query.shape
    k, c = value.shape[2:]
    # Threads add the bias gradients of their rows to separate sums.
    groups = n if grad_bias is None else min(n, -(-2 * torch.get_num_threads() // h))
    own_sums = grad_bias is not None and groups > 1
    sums = torch.zeros(groups, h, q, k) if own_sums else None if grad_bias is None else grad_bias[None]
    heads = *_strided(query), *_strided(key), *_strided(value), *_strided(out)
    grads = (value for each in (gradient, *grad_heads, sums) for value in _strided(each))
    address = loop(_backward, query.itemsize, _size(bias), _size(mask_bias))
    biases = *_strided(bias, 2), *_strided(mask_bias, 1)
    run(address, groups * h, 1, h, q, k, d, c, *heads, *biases, *grads, n, groups)
    if own_sums and grad_bias is not None and sums is not None:
        grad_bias += sums.sum(0)


def _size(x: Tensor | None) -> int:
    return 0 if x is None else x.itemsize


def _strided(x: Tensor | None, count: int = 3) -> tuple[int, ...]:
    """Return the address and the first strides of a tensor."""
    return (0,) * (1 + count) if x is None else (x.data_ptr(), *x.stride()[:count])
