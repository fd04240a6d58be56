"""Attention as a Triton kernel that stores no logits; its gradients are in `attention_backward`."""

from typing import Any, no_type_check

import torch
from torch import Tensor

from helixfold.ops.dispatch import wants_gradient
from helixfold.ops.triton.attention_backward import attention_backward
from helixfold.ops.triton.attention_tiles import (
    LARGEST_TILE,
    LOG2E,
    addressed,
    aligned,
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
    weighed,
    write,
)
from helixfold.ops.triton.language import cdiv, jit, kernel, tl


@jit
@no_type_check
def _take_in(
    query,
    so_far,
    key,
    value,
    penalty,
    bias,
    here,
    first,
    keys,
    factor,
    log2e,
    channels: tl.constexpr,
    width: tl.constexpr,
    block_k: tl.constexpr,
):
    """Return the state of the online softmax after another tile of keys.

    The state is the weighted sum of values, the largest logit, and the sum of weights relative to it.
    """
    gathered, peak, total = so_far
    keys_here = read(key, here, first, keys, block_k, channels, width)
    values_here = read(value, here, first, keys, block_k, channels, width)
    added = penalty_of(penalty, here, first, block_k)[None, :]
    logit = tl.dot(query, tl.trans(keys_here), input_precision="ieee") * (factor * log2e) + added
    if bias is not None:
        logit += bias * log2e
    higher = tl.maximum(peak, tl.max(logit, 1))
    share = tl.exp2(logit - higher[:, None])
    faded = tl.exp2(peak - higher)
    gathered = tl.dot(share.to(values_here.dtype), values_here, gathered * faded[:, None], input_precision="ieee")
    return gathered, higher, total * faded + tl.sum(share, 1)


@jit
@no_type_check
def _put(
    so_far,
    gate,
    out,
    logsum,
    here,
    sizes,
    first,
    channels: tl.constexpr,
    width: tl.constexpr,
    block_q: tl.constexpr,
):
    """Store the result of a tile of queries, and the log of the softmax's denominator for the gradients."""
    gathered, peak, total = so_far
    queries = sizes[2]
    gathered = gathered / total[:, None]
    if gate is not None:
        gathered *= tl.sigmoid(read(gate, here, first, queries, block_q, channels, width).to(tl.float32))
    write(out, here, first, queries, gathered, block_q, channels, width)
    if logsum is not None:
        query = first + tl.arange(0, block_q)
        tl.store(numbers_at(logsum, here, sizes) + query, peak + tl.log2(total), mask=query < queries)


@kernel
@no_type_check
def _attend(
    query,
    key,
    value,
    penalty,
    alive,
    bias,
    bias_keys,
    gate,
    out,
    logsum,
    sizes,
    factor,
    log2e,
    channels: tl.constexpr,
    width: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    group: tl.constexpr,
    two: tl.constexpr,
):
    """Compute a tile of queries of one head in one row, or in two rows, for which the bias is read once."""
    rows, heads, queries, keys = sizes
    row, head, tile = place(heads, tl.cdiv(queries, block_q), group)
    if two:
        row *= 2
    if row >= rows:
        return
    first = tile * block_q
    here = (tl.program_id(1), row, head)
    own = read(query, here, first, queries, block_q, channels, width)
    own_log2e = log2e * tl.load(row_at(alive, here, sizes))
    nothing = tl.zeros([block_q, width], tl.float32)
    lowest = tl.full([block_q], -float("inf"), tl.float32)
    so_far = (nothing, lowest, tl.zeros([block_q], tl.float32))
    if two:
        # Of an odd number of rows the last is computed and stored twice by the same program.
        there = (tl.program_id(1), tl.minimum(row + 1, rows - 1), head)
        theirs = read(query, there, first, queries, block_q, channels, width)
        their_log2e = log2e * tl.load(row_at(alive, there, sizes))
        more = (nothing, lowest, tl.zeros([block_q], tl.float32))
    query_index = (first + tl.arange(0, block_q))[:, None]
    for at in range(0, keys, block_k):
        term = None
        if bias is not None:
            key_index = (at + tl.arange(0, block_k))[None, :]
            term = read_bias(bias, bias_keys, here, query_index, queries, key_index).to(tl.float32)
        so_far = _take_in(
            own, so_far, key, value, penalty, term, here, at, keys, factor, own_log2e, channels, width, block_k
        )
        if two:
            more = _take_in(
                theirs, more, key, value, penalty, term, there, at, keys, factor, their_log2e, channels, width, block_k
            )
    _put(so_far, gate, out, logsum, here, sizes, first, channels, width, block_q)
    if two:
        _put(more, gate, out, logsum, there, sizes, first, channels, width, block_q)


def attention_triton(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, bias: Tensor | None = None, gate: Tensor | None = None
) -> Tensor:
    """Compute `attention` on a CUDA device, copying no input but a bias whose rows are not aligned."""
    if wants_gradient(query, key, value, bias, gate):
        return _Attention.apply(query, key, value, mask, bias, gate)
    return _forward(query, key, value, *weighed(mask), None if bias is None else aligned(bias), gate, save=False)[0]


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    penalty: Tensor,
    alive: Tensor,
    bias: Tensor | None,
    gate: Tensor | None,
    *,
    save: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return the result as a view of (b n q h c), and if `save` the logarithms of the softmax's denominators."""
    b, n, h, q, c = query.shape
    k = key.shape[-2]
    out = query.new_empty(b, n, q, h, c).transpose(2, 3)
    logsum = query.new_empty(b, n, h, q, dtype=torch.float32) if save else None
    exact = query.dtype == torch.float32
    two = bias is not None and n > 1
    # Two rows with tiles of 32 keys take as many registers as one row with tiles of 64.
    block_q, block_k = power_of_2(q, 64 if exact else LARGEST_TILE), power_of_2(k, 32 if exact or two else 64)
    places = cdiv(n, 2) if two else n
    _attend[(programs(places, h, cdiv(q, block_q)), b)](
        addressed(query),
        addressed(key),
        addressed(value),
        addressed(penalty),
        alive,
        None if bias is None else addressed(bias),
        None if bias is None else bias.shape[-1],
        None if gate is None else addressed(gate),
        addressed(out),
        logsum,
        (n, h, q, k),
        c**-0.5,
        LOG2E,
        channels=c,
        width=max(16, c),
        block_q=block_q,
        block_k=block_k,
        group=group_of(places),
        two=two,
        **effort(block_q),
    )
    return out, logsum


class _Attention(torch.autograd.Function):
    """Attention that saves its result and one number per query and head, and recomputes the weights for gradients."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, bias: Tensor | None, gate: Tensor | None
    ) -> Tensor:
        given = (query, key, value, *weighed(mask), None if bias is None else aligned(bias), gate)
        out, logsum = _forward(*given, save=True)
        ctx.save_for_backward(*given, out, logsum)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return attention_backward(gradient, ctx.needs_input_grad, *ctx.saved_tensors)
