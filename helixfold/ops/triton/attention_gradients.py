"""Launches of the kernels that compute the gradients of attention."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from helixfold.ops.triton.attention_backward import prepare, to_key_and_value, to_query, to_query_and_bias
from helixfold.ops.triton.attention_tiles import (
    LARGEST_TILE,
    LOG2E,
    group_size,
    launch_options,
    program_count,
    tile_size,
    with_strides,
)
from helixfold.ops.triton.language import cdiv
from helixfold.ops.triton.sums import summed

# Two programs on each of the 132 multiprocessors of an H100 or H200.
_PROGRAMS = 264


class GradientMemory(NamedTuple):
    """Memory for the gradients of attention's arguments, with their shapes; a None is allocated if it is needed."""

    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    gate: Tensor | None = None


_ALLOCATED = GradientMemory()


def attention_backward(
    gradient: Tensor,
    needed: tuple[bool, ...],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask_bias: Tensor,
    has_keys: Tensor,
    bias: Tensor | None,
    gate: Tensor | None,
    out: Tensor,
    logsum: Tensor,
    memory: GradientMemory = _ALLOCATED,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of query, key, value, mask (None), bias and gate; those not `needed` may be None.

    They are written into `memory` where it is given.
    """
    b, n, h, q, c = query.shape
    k = key.shape[-2]
    sizes, exact = (n, h, q, k), query.dtype == torch.float32
    shape = {"channels": c, "width": max(16, c)}
    delta = torch.empty_like(logsum)
    grad_attended, grad_gate = (None, None) if gate is None else (_like(gradient), _given(memory.gate, gate))
    block = tile_size(q, 64)
    prepare[(cdiv(q, block) * n * h, b)](
        *(None if x is None else with_strides(x) for x in (gradient, out, gate, grad_attended, grad_gate)),
        delta,
        sizes,
        **shape,
        block_q=block,
        **launch_options(block),
    )
    inputs = (
        *(with_strides(x) for x in (query, key, value, mask_bias)),
        has_keys,
        None if bias is None else with_strides(bias),
        None if bias is None else bias.shape[-1],
        with_strides(gradient if grad_attended is None else grad_attended),
        logsum,
        delta,
    )
    grad_query = grad_key = grad_value = grad_bias = None
    if needed[1] or needed[2]:
        grad_key, grad_value = _given(memory.key, key), _given(memory.value, value)
        block_q, block_k = tile_size(q, 32), tile_size(k, 64 if exact else LARGEST_TILE)
        to_key_and_value[(program_count(n, h, cdiv(k, block_k)), b)](
            inputs,
            with_strides(grad_key),
            with_strides(grad_value),
            sizes,
            c**-0.5,
            LOG2E,
            **shape,
            block_q=block_q,
            block_k=block_k,
            group=group_size(n),
            **launch_options(block_k),
        )
    if needed[4] and bias is not None:
        grad_query = _given(memory.query, query)
        grad_bias = _query_and_bias(grad_query, bias, k, inputs)
    elif needed[0]:
        grad_query = _given(memory.query, query)
        block_q, block_k = tile_size(q, 64 if exact else LARGEST_TILE), tile_size(k, 32 if exact else 64)
        to_query[(program_count(n, h, cdiv(q, block_q)), b)](
            inputs,
            with_strides(grad_query),
            sizes,
            c**-0.5,
            LOG2E,
            **shape,
            block_q=block_q,
            block_k=block_k,
            group=group_size(n),
            **launch_options(block_q),
        )
    return grad_query, grad_key, grad_value, None, grad_bias, grad_gate


def _query_and_bias(grad_query: Tensor, bias: Tensor, k: int, inputs: tuple[Any, ...]) -> Tensor:
    """Write the gradient of the query and return that of the bias.

    There is one launch for each part of the keys, so that sums have a fixed order. The bias has a partial sum for each
    part of the rows, so that there are enough programs.
    """
    b, n, h, q, c = grad_query.shape
    # Products of float32 tiles with many channels need many registers.
    largest_block = 64 if c <= 32 and grad_query.dtype != torch.float32 else 32
    block_q, block_k = tile_size(q, 64), tile_size(k, largest_block)
    tiles = cdiv(q, block_q) * h
    rows_of_part = cdiv(n, max(1, min(n, _PROGRAMS // (tiles * b))))
    parts = cdiv(n, rows_of_part)
    grad_bias = grad_query.new_empty(parts, b, h, q, k, dtype=torch.float32)
    partial_sum = _like(grad_query, torch.float32) if k > 2 * block_k else grad_query
    for first_key in range(0, k, 2 * block_k):
        last = first_key + 2 * block_k >= k
        to_query_and_bias[(tiles * parts, b)](
            inputs,
            None if first_key == 0 else with_strides(partial_sum),
            with_strides(grad_query if last else partial_sum),
            grad_bias,
            (n, h, q, k),
            first_key,
            rows_of_part,
            c**-0.5,
            LOG2E,
            channels=c,
            width=max(16, c),
            block_q=block_q,
            block_k=block_k,
            two_tiles=first_key + block_k < k,
            **launch_options(block_q),
        )
    return summed(grad_bias, bias[..., :k])[0]


def _given(memory: Tensor | None, x: Tensor) -> Tensor:
    return _like(x) if memory is None else memory


def _like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return memory for a gradient as a view of (b n q h c), the layout that projections need."""
    b, n, h, q, c = x.shape
    return x.new_empty(b, n, q, h, c, dtype=dtype).transpose(2, 3)
