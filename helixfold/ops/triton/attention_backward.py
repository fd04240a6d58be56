"""Triton kernels for the gradients of attention, which do not store the logits and sum in a fixed order.

There are three kernels:

- `to_key_and_value` computes a tile of keys of a row in a loop over queries, with four matrix products: the logits and
  the gradients of weights, keys and values.
- `to_query` computes a tile of queries in a loop over keys, with three products: the logits and the gradients of
  weights and queries.
- `to_bias` computes a tile of the bias in a loop over rows, so that the bias and its gradient stay in registers, with
  two products: the logits and the gradients of weights.

A joint kernel for queries and bias would need seven products instead of nine, but it would spill registers, and read
and write the sums of the queries for every 128 keys.
"""

from typing import no_type_check

from helixfold.ops.triton.attention_tiles import (
    program_tile,
    query_scalars_at,
    read,
    read_bias,
    read_mask_bias,
    row_at,
    write,
)
from helixfold.ops.triton.language import jit, kernel, tl


@kernel
@no_type_check
def prepare(
    gradient,
    out,
    gate,
    grad_attended,
    grad_gate,
    delta,
    sizes,
    channels: tl.constexpr,
    width: tl.constexpr,
    block_q: tl.constexpr,
):
    """Store the gradients of the ungated result and of the gate, and `delta` for each query.

    `delta` is the product of `gradient` and `out` summed over channels, a term of the gradient of every logit.
    """
    rows, heads, queries, _ = sizes
    head, row = tl.program_id(0) % heads, tl.program_id(0) // heads % rows
    first = tl.program_id(0) // (heads * rows) * block_q
    where = (tl.program_id(1), row, head)
    grad_bias_tile = read(gradient, where, first, queries, block_q, channels, width).to(tl.float32)
    product = grad_bias_tile * read(out, where, first, queries, block_q, channels, width).to(tl.float32)
    query = first + tl.arange(0, block_q)
    tl.store(query_scalars_at(delta, where, sizes) + query, tl.sum(product, 1), mask=query < queries)
    if gate is not None:
        gate_tile = tl.sigmoid(read(gate, where, first, queries, block_q, channels, width).to(tl.float32))
        write(grad_attended, where, first, queries, grad_bias_tile * gate_tile, block_q, channels, width)
        write(grad_gate, where, first, queries, product * (1 - gate_tile), block_q, channels, width)


@jit
@no_type_check
def _weight_and_gradient(left, right, grad_left, grad_right, bias, mask_bias, logsum, delta, scale, log2e):
    """Return the weights and the gradients of the logits of a tile [queries, keys], or of its transpose."""
    logit = tl.dot(left, tl.trans(right), input_precision="ieee") * scale + mask_bias
    if bias is not None:
        logit += bias.to(tl.float32) * log2e
    weight = tl.exp2(logit - logsum)
    grad_weight = tl.dot(grad_left, tl.trans(grad_right), input_precision="ieee")
    return weight, weight * (grad_weight - delta)


@jit
@no_type_check
def _queries(inputs, where, sizes, first, channels: tl.constexpr, width: tl.constexpr, block_q: tl.constexpr):
    """Return some queries, the gradients of their results, and their `logsum` and `delta`."""
    query, _, _, _, _, _, _, gradient, logsum, delta = inputs
    count = sizes[2]
    index = first + tl.arange(0, block_q)
    return (
        read(query, where, first, count, block_q, channels, width),
        read(gradient, where, first, count, block_q, channels, width),
        tl.load(query_scalars_at(logsum, where, sizes) + index, mask=index < count, other=0.0),
        tl.load(query_scalars_at(delta, where, sizes) + index, mask=index < count, other=0.0),
    )


@jit
@no_type_check
def _bias_tile(inputs, where, sizes, first, first_key, block_q: tl.constexpr, block_k: tl.constexpr):
    """Return the bias of some queries and keys."""
    index, key_index = first + tl.arange(0, block_q)[:, None], first_key + tl.arange(0, block_k)[None, :]
    return read_bias(inputs[5], inputs[6], where, index, sizes[2], key_index)


@kernel
@no_type_check
def to_key_and_value(
    inputs,
    grad_key,
    grad_value,
    sizes,
    factor,
    log2e,
    channels: tl.constexpr,
    width: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    group: tl.constexpr,
):
    """Compute the gradients of a tile of keys and values of one head and row, from all queries."""
    _, key, value, mask_bias, has_keys, bias, _, _, _, _ = inputs
    rows, heads, queries, keys = sizes
    row, head, tile = program_tile(heads, tl.cdiv(keys, block_k), group)
    if row >= rows:
        return
    where = (tl.program_id(1), row, head)
    first = tile * block_k
    k_tile = read(key, where, first, keys, block_k, channels, width)
    v_tile = read(value, where, first, keys, block_k, channels, width)
    log2e *= tl.load(row_at(has_keys, where, sizes))
    masks = read_mask_bias(mask_bias, where, first, block_k)[:, None]
    grad_keys = tl.zeros([block_k, width], tl.float32)
    grad_values = tl.zeros([block_k, width], tl.float32)
    for first_query in range(0, queries, block_q):
        q_tile, grads, logsum, delta = _queries(inputs, where, sizes, first_query, channels, width, block_q)
        bias_tile = None
        if bias is not None:
            bias_tile = tl.trans(_bias_tile(inputs, where, sizes, first_query, first, block_q, block_k))
        weight, grad_logit = _weight_and_gradient(
            k_tile, q_tile, v_tile, grads, bias_tile, masks, logsum[None, :], delta[None, :], factor * log2e, log2e
        )
        grad_values = tl.dot(weight.to(grads.dtype), grads, grad_values, input_precision="ieee")
        grad_keys = tl.dot(grad_logit.to(q_tile.dtype), q_tile, grad_keys, input_precision="ieee")
    write(grad_key, where, first, keys, grad_keys * factor, block_k, channels, width)
    write(grad_value, where, first, keys, grad_values, block_k, channels, width)


@kernel
@no_type_check
def to_query(
    inputs,
    grad_query,
    sizes,
    factor,
    log2e,
    channels: tl.constexpr,
    width: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    group: tl.constexpr,
):
    """Compute the gradients of a tile of queries of one head and row, from all keys."""
    _, key, value, mask_bias, has_keys, bias, _, _, _, _ = inputs
    rows, heads, queries, keys = sizes
    row, head, tile = program_tile(heads, tl.cdiv(queries, block_q), group)
    if row >= rows:
        return
    where = (tl.program_id(1), row, head)
    first = tile * block_q
    log2e *= tl.load(row_at(has_keys, where, sizes))
    grad_tile = tl.zeros([block_q, width], tl.float32)
    q_tile, grads, logsum, delta = _queries(inputs, where, sizes, first, channels, width, block_q)
    for first_key in range(0, keys, block_k):
        bias_tile = None
        if bias is not None:
            bias_tile = _bias_tile(inputs, where, sizes, first, first_key, block_q, block_k)
        k_tile = read(key, where, first_key, keys, block_k, channels, width)
        v_tile = read(value, where, first_key, keys, block_k, channels, width)
        masks = read_mask_bias(mask_bias, where, first_key, block_k)[None, :]
        grad_logit = _weight_and_gradient(
            q_tile, k_tile, grads, v_tile, bias_tile, masks, logsum[:, None], delta[:, None], factor * log2e, log2e
        )[1]
        grad_tile = tl.dot(grad_logit.to(q_tile.dtype), k_tile, grad_tile, input_precision="ieee")
    write(grad_query, where, first, queries, grad_tile * factor, block_q, channels, width)


@kernel
@no_type_check
def to_bias(
    inputs,
    grad_bias,
    sizes,
    rows_of_part,
    factor,
    log2e,
    channels: tl.constexpr,
    width: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
):
    """Compute the gradient of the bias of a tile of queries and keys over a part of the rows."""
    _, key, value, mask_bias, has_keys, _, _, _, _, _ = inputs
    rows, heads, queries, keys = sizes
    key_tiles = tl.cdiv(keys, block_k)
    tile = tl.program_id(0) % (tl.cdiv(queries, block_q) * key_tiles)
    head = tl.program_id(0) // (tl.cdiv(queries, block_q) * key_tiles) % heads
    part = tl.program_id(0) // (tl.cdiv(queries, block_q) * key_tiles * heads)
    first, first_key = tile // key_tiles * block_q, tile % key_tiles * block_k
    sample = tl.program_id(1)
    bias = _bias_tile(inputs, (sample, 0, head), sizes, first, first_key, block_q, block_k)
    total = tl.zeros([block_q, block_k], tl.float32)
    for row in range(part * rows_of_part, tl.minimum((part + 1) * rows_of_part, rows)):
        where = (sample, row, head)
        q_tile, grads, logsum, delta = _queries(inputs, where, sizes, first, channels, width, block_q)
        k_tile = read(key, where, first_key, keys, block_k, channels, width)
        v_tile = read(value, where, first_key, keys, block_k, channels, width)
        masks = read_mask_bias(mask_bias, where, first_key, block_k)[None, :]
        row_log2e = log2e * tl.load(row_at(has_keys, where, sizes))
        total += _weight_and_gradient(
            q_tile,
            k_tile,
            grads,
            v_tile,
            bias,
            masks,
            logsum[:, None],
            delta[:, None],
            factor * row_log2e,
            row_log2e,
        )[1]
    query, key_index = first + tl.arange(0, block_q)[:, None], first_key + tl.arange(0, block_k)[None, :]
    plane = (tl.cast(part, tl.int64) * tl.num_programs(1) + sample) * heads + head
    inside = (query < queries) & (key_index < keys)
    tl.store(grad_bias + (plane * queries + query) * keys + key_index, total, mask=inside)
