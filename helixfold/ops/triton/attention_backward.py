"""Gradients of attention as Triton kernels that store no logits and whose sums have a fixed order.

One kernel owns a tile of keys of a row and loops over queries (four matrix products: logits and the gradients of
weights, keys and values). Another owns a tile of queries and 128 keys and loops over rows, so that the bias and its
gradient stay in registers (three products: logits and the gradients of weights and queries). These are seven products;
five are the least possible, and a separate kernel for the bias would need nine.
"""

from typing import no_type_check

from helixfold.ops.triton.attention_tiles import (
    program_tile,
    query_numbers_at,
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
    """Store the gradients of the ungated result and of the gate, and `delta`, a term of every logit's gradient."""
    rows, heads, queries, _ = sizes
    head, row = tl.program_id(0) % heads, tl.program_id(0) // heads % rows
    first = tl.program_id(0) // (heads * rows) * block_q
    where = (tl.program_id(1), row, head)
    grad_bias_tile = read(gradient, where, first, queries, block_q, channels, width).to(tl.float32)
    product = grad_bias_tile * read(out, where, first, queries, block_q, channels, width).to(tl.float32)
    query = first + tl.arange(0, block_q)
    tl.store(query_numbers_at(delta, where, sizes) + query, tl.sum(product, 1), mask=query < queries)
    if gate is not None:
        gate_tile = tl.sigmoid(read(gate, where, first, queries, block_q, channels, width).to(tl.float32))
        write(grad_attended, where, first, queries, grad_bias_tile * gate_tile, block_q, channels, width)
        write(grad_gate, where, first, queries, product * (1 - gate_tile), block_q, channels, width)


@jit
@no_type_check
def _weight_and_gradient(left, right, grad_left, grad_right, bias, mask_bias, logsum, delta, scale, log2e):
    """Return a tile's weights and the gradients of its logits; rows are queries and columns keys, or vice versa."""
    logit = tl.dot(left, tl.trans(right), input_precision="ieee") * scale + mask_bias
    if bias is not None:
        logit += bias.to(tl.float32) * log2e
    weight = tl.exp2(logit - logsum)
    grad_weight = tl.dot(grad_left, tl.trans(grad_right), input_precision="ieee")
    return weight, weight * (grad_weight - delta)


@jit
@no_type_check
def _queries(inputs, where, sizes, first, channels: tl.constexpr, width: tl.constexpr, block_q: tl.constexpr):
    """Return some queries, the gradients of their results, and `logsum` and `delta` of each."""
    query, _, _, _, _, _, _, gradient, logsum, delta = inputs
    count = sizes[2]
    index = first + tl.arange(0, block_q)
    return (
        read(query, where, first, count, block_q, channels, width),
        read(gradient, where, first, count, block_q, channels, width),
        tl.load(query_numbers_at(logsum, where, sizes) + index, mask=index < count, other=0.0),
        tl.load(query_numbers_at(delta, where, sizes) + index, mask=index < count, other=0.0),
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


@jit
@no_type_check
def _add_to_queries(
    inputs,
    query_data,
    bias_tile,
    where,
    first,
    keys,
    factor,
    log2e,
    grad_tile,
    channels: tl.constexpr,
    width: tl.constexpr,
    block_k: tl.constexpr,
):
    """Return the gradients of queries with the part of a tile of keys added, and the gradients of the logits."""
    q_tile, grads, logsum, delta = query_data
    k_tile = read(inputs[1], where, first, keys, block_k, channels, width)
    v_tile = read(inputs[2], where, first, keys, block_k, channels, width)
    masks = read_mask_bias(inputs[3], where, first, block_k)[None, :]
    _, grad_logit = _weight_and_gradient(
        q_tile, k_tile, grads, v_tile, bias_tile, masks, logsum[:, None], delta[:, None], factor * log2e, log2e
    )
    return tl.dot(grad_logit.to(q_tile.dtype), k_tile, grad_tile, input_precision="ieee"), grad_logit


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
    rows, heads, queries, keys = sizes
    row, head, tile = program_tile(heads, tl.cdiv(queries, block_q), group)
    if row >= rows:
        return
    where = (tl.program_id(1), row, head)
    first = tile * block_q
    query_data = _queries(inputs, where, sizes, first, channels, width, block_q)
    log2e *= tl.load(row_at(inputs[4], where, sizes))
    grad_tile = tl.zeros([block_q, width], tl.float32)
    for first_key in range(0, keys, block_k):
        bias_tile = None
        if inputs[5] is not None:
            bias_tile = _bias_tile(inputs, where, sizes, first, first_key, block_q, block_k)
        grad_tile, _ = _add_to_queries(
            inputs, query_data, bias_tile, where, first_key, keys, factor, log2e, grad_tile, channels, width, block_k
        )
    write(grad_query, where, first, queries, grad_tile * factor, block_q, channels, width)


@jit
@no_type_check
def _store_bias_gradient(
    grad_bias, grad_bias_tile, part, where, sizes, first, first_key, block_q: tl.constexpr, block_k: tl.constexpr
):
    """Store a tile of the bias's gradient over one part of the rows."""
    _, heads, queries, keys = sizes
    query, key = first + tl.arange(0, block_q)[:, None], first_key + tl.arange(0, block_k)[None, :]
    tile = (tl.cast(part, tl.int64) * tl.num_programs(1) + where[0]) * heads + where[2]
    tl.store(grad_bias + (tile * queries + query) * keys + key, grad_bias_tile, mask=(query < queries) & (key < keys))


@kernel
@no_type_check
def to_query_and_bias(
    inputs,
    earlier,
    grad_query,
    grad_bias,
    sizes,
    first_key,
    rows_of_part,
    factor,
    log2e,
    channels: tl.constexpr,
    width: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    two_tiles: tl.constexpr,
):
    """Compute the gradient of the bias of a tile of queries and one or two tiles of keys over a part of the rows.

    Also add the part of these keys to `earlier`, the gradients of the queries from the keys before them.
    """
    rows, heads, queries, keys = sizes
    tiles = tl.cdiv(queries, block_q)
    first = tl.program_id(0) % tiles * block_q
    head = tl.program_id(0) // tiles % heads
    part = tl.program_id(0) // (tiles * heads)
    whole = (tl.program_id(1), 0, head)
    bias_1 = _bias_tile(inputs, whole, sizes, first, first_key, block_q, block_k)
    grad_bias_1 = tl.zeros([block_q, block_k], tl.float32)
    if two_tiles:
        second_key = first_key + block_k
        bias_2 = _bias_tile(inputs, whole, sizes, first, second_key, block_q, block_k)
        grad_bias_2 = tl.zeros([block_q, block_k], tl.float32)
    for row in range(part * rows_of_part, tl.minimum((part + 1) * rows_of_part, rows)):
        where = (tl.program_id(1), row, head)
        query_data = _queries(inputs, where, sizes, first, channels, width, block_q)
        row_log2e = log2e * tl.load(row_at(inputs[4], where, sizes))
        grad_tile = tl.zeros([block_q, width], tl.float32)
        grad_tile, grad_logit = _add_to_queries(
            inputs, query_data, bias_1, where, first_key, keys, factor, row_log2e, grad_tile, channels, width, block_k
        )
        grad_bias_1 += grad_logit
        if two_tiles:
            grad_tile, grad_logit = _add_to_queries(
                inputs,
                query_data,
                bias_2,
                where,
                second_key,
                keys,
                factor,
                row_log2e,
                grad_tile,
                channels,
                width,
                block_k,
            )
            grad_bias_2 += grad_logit
        grad_tile *= factor
        if earlier is not None:
            grad_tile += read(earlier, where, first, queries, block_q, channels, width)
        write(grad_query, where, first, queries, grad_tile, block_q, channels, width)
    _store_bias_gradient(grad_bias, grad_bias_1, part, whole, sizes, first, first_key, block_q, block_k)
    if two_tiles:
        _store_bias_gradient(grad_bias, grad_bias_2, part, whole, sizes, first, second_key, block_q, block_k)
