"""Gradients of attention as Triton kernels that store no logits and whose sums have a fixed order.

One kernel owns a tile of keys of a row and loops over queries (four matrix products: logits and the gradients of
weights, keys and values). Another owns a tile of queries and 128 keys and loops over rows, so that the bias and its
gradient stay in registers (three products: logits and the gradients of weights and queries). These are seven products;
five are the least possible, and a separate kernel for the bias would need nine.
"""

from typing import Any, no_type_check

import torch
from torch import Tensor

from helixfold.ops.triton.attention_tiles import (
    LARGEST_TILE,
    LOG2E,
    addressed,
    effort,
    group_of,
    numbers_at,
    penalty_of,
    place,
    power_of_2,
    programs,
    read,
    read_bias,
    row_at,
    write,
)
from helixfold.ops.triton.language import cdiv, jit, kernel, tl

# Two programs on each of the 132 multiprocessors of an H100 or H200.
_PROGRAMS = 264


@kernel
@no_type_check
def _prepare(
    gradient,
    out,
    gate,
    gated,
    of_gate,
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
    here = (tl.program_id(1), row, head)
    own = read(gradient, here, first, queries, block_q, channels, width).to(tl.float32)
    product = own * read(out, here, first, queries, block_q, channels, width).to(tl.float32)
    query = first + tl.arange(0, block_q)
    tl.store(numbers_at(delta, here, sizes) + query, tl.sum(product, 1), mask=query < queries)
    if gate is not None:
        opened = tl.sigmoid(read(gate, here, first, queries, block_q, channels, width).to(tl.float32))
        write(gated, here, first, queries, own * opened, block_q, channels, width)
        write(of_gate, here, first, queries, product * (1 - opened), block_q, channels, width)


@jit
@no_type_check
def _share_and_gradient(left, right, left_of_share, right_of_share, bias, penalty, logsum, delta, scale, log2e):
    """Return a tile's weights and the gradients of its logits; rows are queries and columns keys, or vice versa."""
    logit = tl.dot(left, tl.trans(right), input_precision="ieee") * scale + penalty
    if bias is not None:
        logit += bias.to(tl.float32) * log2e
    share = tl.exp2(logit - logsum)
    of_share = tl.dot(left_of_share, tl.trans(right_of_share), input_precision="ieee")
    return share, share * (of_share - delta)


@jit
@no_type_check
def _queries(given, here, sizes, first, channels: tl.constexpr, width: tl.constexpr, block_q: tl.constexpr):
    """Return some queries, the gradients of their results, and `logsum` and `delta` of each."""
    query, _, _, _, _, _, _, gradient, logsum, delta = given
    count = sizes[2]
    index = first + tl.arange(0, block_q)
    return (
        read(query, here, first, count, block_q, channels, width),
        read(gradient, here, first, count, block_q, channels, width),
        tl.load(numbers_at(logsum, here, sizes) + index, mask=index < count, other=0.0),
        tl.load(numbers_at(delta, here, sizes) + index, mask=index < count, other=0.0),
    )


@jit
@no_type_check
def _term(given, here, sizes, first, first_key, block_q: tl.constexpr, block_k: tl.constexpr):
    """Return the bias of some queries and keys."""
    index, key_index = first + tl.arange(0, block_q)[:, None], first_key + tl.arange(0, block_k)[None, :]
    return read_bias(given[5], given[6], here, index, sizes[2], key_index)


@kernel
@no_type_check
def _to_key_and_value(
    given,
    of_key,
    of_value,
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
    _, key, value, penalty, alive, bias, _, _, _, _ = given
    rows, heads, queries, keys = sizes
    row, head, tile = place(heads, tl.cdiv(keys, block_k), group)
    if row >= rows:
        return
    here = (tl.program_id(1), row, head)
    first = tile * block_k
    keys_here = read(key, here, first, keys, block_k, channels, width)
    values_here = read(value, here, first, keys, block_k, channels, width)
    log2e *= tl.load(row_at(alive, here, sizes))
    added = penalty_of(penalty, here, first, block_k)[:, None]
    of_keys = tl.zeros([block_k, width], tl.float32)
    of_values = tl.zeros([block_k, width], tl.float32)
    for at in range(0, queries, block_q):
        own, of_out, logsum, delta = _queries(given, here, sizes, at, channels, width, block_q)
        term = None
        if bias is not None:
            term = tl.trans(_term(given, here, sizes, at, first, block_q, block_k))
        share, of_logit = _share_and_gradient(
            keys_here, own, values_here, of_out, term, added, logsum[None, :], delta[None, :], factor * log2e, log2e
        )
        of_values = tl.dot(share.to(of_out.dtype), of_out, of_values, input_precision="ieee")
        of_keys = tl.dot(of_logit.to(own.dtype), own, of_keys, input_precision="ieee")
    write(of_key, here, first, keys, of_keys * factor, block_k, channels, width)
    write(of_value, here, first, keys, of_values, block_k, channels, width)


@jit
@no_type_check
def _take_in(
    given,
    opened,
    term,
    here,
    first,
    keys,
    factor,
    log2e,
    of_queries,
    channels: tl.constexpr,
    width: tl.constexpr,
    block_k: tl.constexpr,
):
    """Return the gradients of queries with the part of a tile of keys added, and the gradients of the logits."""
    own, of_out, logsum, delta = opened
    keys_here = read(given[1], here, first, keys, block_k, channels, width)
    values_here = read(given[2], here, first, keys, block_k, channels, width)
    added = penalty_of(given[3], here, first, block_k)[None, :]
    _, of_logit = _share_and_gradient(
        own, keys_here, of_out, values_here, term, added, logsum[:, None], delta[:, None], factor * log2e, log2e
    )
    return tl.dot(of_logit.to(own.dtype), keys_here, of_queries, input_precision="ieee"), of_logit


@kernel
@no_type_check
def _to_query(
    given,
    of_query,
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
    row, head, tile = place(heads, tl.cdiv(queries, block_q), group)
    if row >= rows:
        return
    here = (tl.program_id(1), row, head)
    first = tile * block_q
    opened = _queries(given, here, sizes, first, channels, width, block_q)
    log2e *= tl.load(row_at(given[4], here, sizes))
    of_queries = tl.zeros([block_q, width], tl.float32)
    for at in range(0, keys, block_k):
        term = None
        if given[5] is not None:
            term = _term(given, here, sizes, first, at, block_q, block_k)
        of_queries, _ = _take_in(
            given, opened, term, here, at, keys, factor, log2e, of_queries, channels, width, block_k
        )
    write(of_query, here, first, queries, of_queries * factor, block_q, channels, width)


@jit
@no_type_check
def _put_of_bias(of_bias, of_term, part, here, sizes, first, first_key, block_q: tl.constexpr, block_k: tl.constexpr):
    """Store a tile of the bias's gradient over one part of the rows."""
    _, heads, queries, keys = sizes
    query, key = first + tl.arange(0, block_q)[:, None], first_key + tl.arange(0, block_k)[None, :]
    tile = (tl.cast(part, tl.int64) * tl.num_programs(1) + here[0]) * heads + here[2]
    tl.store(of_bias + (tile * queries + query) * keys + key, of_term, mask=(query < queries) & (key < keys))


@kernel
@no_type_check
def _to_query_and_bias(
    given,
    earlier,
    of_query,
    of_bias,
    sizes,
    first_key,
    rows_of_part,
    factor,
    log2e,
    channels: tl.constexpr,
    width: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    two: tl.constexpr,
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
    term = _term(given, whole, sizes, first, first_key, block_q, block_k)
    of_term = tl.zeros([block_q, block_k], tl.float32)
    if two:
        second_key = first_key + block_k
        second_term = _term(given, whole, sizes, first, second_key, block_q, block_k)
        of_second_term = tl.zeros([block_q, block_k], tl.float32)
    for row in range(part * rows_of_part, tl.minimum((part + 1) * rows_of_part, rows)):
        here = (tl.program_id(1), row, head)
        opened = _queries(given, here, sizes, first, channels, width, block_q)
        weight = log2e * tl.load(row_at(given[4], here, sizes))
        of_queries = tl.zeros([block_q, width], tl.float32)
        of_queries, of_logit = _take_in(
            given, opened, term, here, first_key, keys, factor, weight, of_queries, channels, width, block_k
        )
        of_term += of_logit
        if two:
            of_queries, of_logit = _take_in(
                given, opened, second_term, here, second_key, keys, factor, weight, of_queries, channels, width, block_k
            )
            of_second_term += of_logit
        of_queries *= factor
        if earlier is not None:
            of_queries += read(earlier, here, first, queries, block_q, channels, width)
        write(of_query, here, first, queries, of_queries, block_q, channels, width)
    _put_of_bias(of_bias, of_term, part, whole, sizes, first, first_key, block_q, block_k)
    if two:
        _put_of_bias(of_bias, of_second_term, part, whole, sizes, first, second_key, block_q, block_k)


def attention_backward(
    gradient: Tensor,
    needed: tuple[bool, ...],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    penalty: Tensor,
    alive: Tensor,
    bias: Tensor | None,
    gate: Tensor | None,
    out: Tensor,
    logsum: Tensor,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of query, key, value, mask (None), bias and gate; those not `needed` may be None."""
    b, n, h, q, c = query.shape
    k = key.shape[-2]
    sizes, exact = (n, h, q, k), query.dtype == torch.float32
    shape = {"channels": c, "width": max(16, c)}
    delta = torch.empty_like(logsum)
    gated, of_gate = (None, None) if gate is None else (_like(gradient), _like(gate))
    block = power_of_2(q, 64)
    _prepare[(cdiv(q, block) * n * h, b)](
        *(None if each is None else addressed(each) for each in (gradient, out, gate, gated, of_gate)),
        delta,
        sizes,
        **shape,
        block_q=block,
        **effort(block),
    )
    given = (
        *(addressed(each) for each in (query, key, value, penalty)),
        alive,
        None if bias is None else addressed(bias),
        None if bias is None else bias.shape[-1],
        addressed(gradient if gated is None else gated),
        logsum,
        delta,
    )
    of_query = of_key = of_value = of_bias = None
    if needed[1] or needed[2]:
        of_key, of_value = _like(key), _like(value)
        block_q, block_k = power_of_2(q, 32), power_of_2(k, 64 if exact else LARGEST_TILE)
        _to_key_and_value[(programs(n, h, cdiv(k, block_k)), b)](
            given,
            addressed(of_key),
            addressed(of_value),
            sizes,
            c**-0.5,
            LOG2E,
            **shape,
            block_q=block_q,
            block_k=block_k,
            group=group_of(n),
            **effort(block_k),
        )
    if needed[4]:
        of_query, of_bias = _query_and_bias(query, k, given)
    elif needed[0]:
        of_query = _like(query)
        block_q, block_k = power_of_2(q, 64 if exact else LARGEST_TILE), power_of_2(k, 32 if exact else 64)
        _to_query[(programs(n, h, cdiv(q, block_q)), b)](
            given,
            addressed(of_query),
            sizes,
            c**-0.5,
            LOG2E,
            **shape,
            block_q=block_q,
            block_k=block_k,
            group=group_of(n),
            **effort(block_q),
        )
    return of_query, of_key, of_value, None, of_bias, of_gate


def _query_and_bias(query: Tensor, k: int, given: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Return the gradients of query and bias, with one launch per part of the keys, so that sums have a fixed order.

    The bias has a partial sum for each part of the rows, so that there are enough programs.
    """
    b, n, h, q, c = query.shape
    # Products of float32 tiles with many channels need many registers.
    most = 64 if c <= 32 and query.dtype != torch.float32 else 32
    block_q, block_k = power_of_2(q, 64), power_of_2(k, most)
    tiles = cdiv(q, block_q) * h
    rows_of_part = cdiv(n, max(1, min(n, _PROGRAMS // (tiles * b))))
    parts = cdiv(n, rows_of_part)
    of_query, of_bias = _like(query), query.new_empty(parts, b, h, q, k, dtype=torch.float32)
    so_far = _like(query, torch.float32) if k > 2 * block_k else of_query
    for first_key in range(0, k, 2 * block_k):
        last = first_key + 2 * block_k >= k
        _to_query_and_bias[(tiles * parts, b)](
            given,
            None if first_key == 0 else addressed(so_far),
            addressed(of_query if last else so_far),
            of_bias,
            (n, h, q, k),
            first_key,
            rows_of_part,
            c**-0.5,
            LOG2E,
            channels=c,
            width=max(16, c),
            block_q=block_q,
            block_k=block_k,
            two=first_key + block_k < k,
            **effort(block_q),
        )
    return of_query, of_bias.sum(0)


def _like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return memory for a gradient as a view of (b n q h c), the layout that projections need."""
    b, n, h, q, c = x.shape
    return x.new_empty(b, n, q, h, c, dtype=dtype).transpose(2, 3)
