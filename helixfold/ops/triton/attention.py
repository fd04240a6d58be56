"""Attention as a Triton kernel that does not store the logits; `attention_backward` has its gradients."""

from typing import Any, no_type_check

import torch
from torch import Tensor

from helixfold.ops.dispatch import wants_gradient
from helixfold.ops.triton.attention_gradients import attention_backward
from helixfold.ops.triton.attention_tiles import (
    LARGEST_TILE,
    LOG2E,
    aligned,
    group_size,
    launch_options,
    mask_terms,
    program_count,
    program_tile,
    query_scalars_at,
    read,
    read_bias,
    read_mask_bias,
    row_at,
    tile_size,
    with_strides,
    write,
)
from helixfold.ops.triton.language import cdiv, jit, kernel, multiplies_from_shared_memory, tl


@jit
@no_type_check
def _add_keys(
    query,
    state,
    key,
    value,
    mask_bias,
    bias,
    where,
    first,
    keys,
    factor,
    log2e,
    channels: tl.constexpr,
    width: tl.constexpr,
    block_k: tl.constexpr,
):
    """Return the state of the online softmax after another tile of keys.

    The state is the weighted sum of values, the maximum logit, and the sum of weights relative to it.
    """
    attended, largest, total = state
    k_tile = read(key, where, first, keys, block_k, channels, width)
    v_tile = read(value, where, first, keys, block_k, channels, width)
    masks = read_mask_bias(mask_bias, where, first, block_k)[None, :]
    logit = tl.dot(query, tl.trans(k_tile), input_precision="ieee") * (factor * log2e) + masks
    if bias is not None:
        logit += bias * log2e
    new_largest = tl.maximum(largest, tl.max(logit, 1))
    weight = tl.exp2(logit - new_largest[:, None])
    rescaling = tl.exp2(largest - new_largest)
    attended = tl.dot(weight.to(v_tile.dtype), v_tile, attended * rescaling[:, None], input_precision="ieee")
    return attended, new_largest, total * rescaling + tl.sum(weight, 1)


@jit
@no_type_check
def _store(
    state,
    gate,
    out,
    logsum,
    where,
    sizes,
    first,
    channels: tl.constexpr,
    width: tl.constexpr,
    block_q: tl.constexpr,
):
    """Store the result for a tile of queries, and the logarithm of the softmax denominator for the gradients."""
    attended, largest, total = state
    queries = sizes[2]
    attended = attended / total[:, None]
    if gate is not None:
        attended *= tl.sigmoid(read(gate, where, first, queries, block_q, channels, width).to(tl.float32))
    write(out, where, first, queries, attended, block_q, channels, width)
    if logsum is not None:
        query = first + tl.arange(0, block_q)
        tl.store(query_scalars_at(logsum, where, sizes) + query, largest + tl.log2(total), mask=query < queries)


@kernel
@no_type_check
def _attend(
    query,
    key,
    value,
    mask_bias,
    has_keys,
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
):
    """Compute attention for a tile of queries of one head in one row."""
    rows, heads, queries, keys = sizes
    row, head, tile = program_tile(heads, tl.cdiv(queries, block_q), group)
    if row >= rows:
        return
    first = tile * block_q
    where = (tl.program_id(1), row, head)
    q_tile = read(query, where, first, queries, block_q, channels, width)
    row_log2e = log2e * tl.load(row_at(has_keys, where, sizes))
    lowest = tl.full([block_q], -float("inf"), tl.float32)
    state = (tl.zeros([block_q, width], tl.float32), lowest, tl.zeros([block_q], tl.float32))
    query_index = (first + tl.arange(0, block_q))[:, None]
    for first_key in range(0, keys, block_k):
        bias_tile = None
        if bias is not None:
            key_index = (first_key + tl.arange(0, block_k))[None, :]
            bias_tile = read_bias(bias, bias_keys, where, query_index, queries, key_index).to(tl.float32)
        state = _add_keys(
            q_tile,
            state,
            key,
            value,
            mask_bias,
            bias_tile,
            where,
            first_key,
            keys,
            factor,
            row_log2e,
            channels,
            width,
            block_k,
        )
    _store(state, gate, out, logsum, where, sizes, first, channels, width, block_q)


def attention_triton(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, bias: Tensor | None = None, gate: Tensor | None = None
) -> Tensor:
    """Compute `attention` on a CUDA device; the only input that may be copied is a bias with unaligned rows."""
    if wants_gradient(query, key, value, bias, gate):
        return _Attention.apply(query, key, value, mask, bias, gate)
    return attend(query, key, value, *mask_terms(mask), None if bias is None else aligned(bias), gate, save=False)[0]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask_bias: Tensor,
    has_keys: Tensor,
    bias: Tensor | None,
    gate: Tensor | None,
    *,
    save: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return the gated result [b n h q c], stored as (b n q h c), and the log2 of the softmax denominators or None.

    The denominators are returned if `save` is set. `mask_bias` and `has_keys` are the results of `mask_terms`, and the
    bias has `aligned` rows.
    """
    b, n, h, q, c = query.shape
    k = key.shape[-2]
    out = query.new_empty(b, n, q, h, c).transpose(2, 3)
    logsum = query.new_empty(b, n, h, q, dtype=torch.float32) if save else None
    exact = query.dtype == torch.float32
    is_wide = multiplies_from_shared_memory(query.device) and not exact
    block_q = tile_size(q, 64 if exact or is_wide else LARGEST_TILE)
    # A tile of the bias also takes registers, of which a single warp has fewer.
    block_k = tile_size(k, 32 if exact or is_wide or bias is not None or block_q == 16 else 64)
    _attend[(program_count(n, h, cdiv(q, block_q)), b)](
        with_strides(query),
        with_strides(key),
        with_strides(value),
        with_strides(mask_bias),
        has_keys,
        None if bias is None else with_strides(bias),
        None if bias is None else bias.shape[-1],
        None if gate is None else with_strides(gate),
        with_strides(out),
        logsum,
        (n, h, q, k),
        c**-0.5,
        LOG2E,
        channels=c,
        width=max(16, c),
        block_q=block_q,
        block_k=block_k,
        group=group_size(n),
        **launch_options(block_q, stages=3 if is_wide else 2),
    )
    return out, logsum


class _Attention(torch.autograd.Function):
    """Attention that saves its result and one number per query and head; the backward pass recomputes the weights."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, bias: Tensor | None, gate: Tensor | None
    ) -> Tensor:
        inputs = (query, key, value, *mask_terms(mask), None if bias is None else aligned(bias), gate)
        out, logsum = attend(*inputs, save=True)
        ctx.save_for_backward(*inputs, out, logsum)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return attention_backward(gradient, ctx.needs_input_grad, *ctx.saved_tensors)
