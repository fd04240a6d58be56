"""Gradients of attention on a CUDA device: launches of the kernels in `attention_backward`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from helixfold.ops.triton.attention_backward import prepare, to_bias, to_key_and_value, to_query
from helixfold.ops.triton.attention_tiles import (
    LARGEST_TILE,
    LOG2E,
    group_size,
    launch_options,
    program_count,
    tile_size,
    with_strides,
)
from helixfold.ops.triton.language import cdiv, multiplies_from_shared_memory
from helixfold.ops.triton.sums import summed

# Two programs on each of the 132 multiprocessors of an H100 or H200.
_PROGRAMS = 264


class GradientMemory(NamedTuple):
    """Memory for the gradients of the arguments of attention, with their shapes; where None, memory is allocated."""

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
    """Return the gradients of query, key, value, mask (None), bias and gate; gradients not `needed` may be None.

    `gradient` is the gradient of the gated result `out`. Gradients are written into the tensors of `memory`.
    """
    b, n, h, q, c = query.shape
    delta = torch.empty_like(logsum)
    grad_attended, grad_gate = (None, None) if gate is None else (_like(gradient), _memory_for(memory.gate, gate))
    block = tile_size(q, 64)
    prepare[(cdiv(q, block) * n * h, b)](
        *(None if x is None else with_strides(x) for x in (gradient, out, gate, grad_attended, grad_gate)),
        delta,
        (n, h, q, key.shape[-2]),
        channels=c,
        width=max(16, c),
        block_q=block,
        **launch_options(block),
    )
    gradient = gradient if grad_attended is None else grad_attended
    terms = mask_bias, has_keys, bias, logsum, delta
    *grad_heads, grad_bias = gradients_from_attended(gradient, needed, query, key, value, *terms, memory)
    return *grad_heads, None, grad_bias, grad_gate


def gradients_from_attended(
    gradient: Tensor,
    needed: tuple[bool, ...],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask_bias: Tensor,
    has_keys: Tensor,
    bias: Tensor | None,
    logsum: Tensor,
    delta: Tensor,
    memory: GradientMemory = _ALLOCATED,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of query, key, value and bias, given the gradient of the ungated result."""
    b, n, h, q, c = query.shape
    k = key.shape[-2]
    sizes, exact = (n, h, q, k), query.dtype == torch.float32
    is_wide = multiplies_from_shared_memory(query.device) and not exact
    shape = {"channels": c, "width": max(16, c)}
    inputs = (
        *(with_strides(x) for x in (query, key, value, mask_bias)),
        has_keys,
        None if bias is None else with_strides(bias),
        None if bias is None else bias.shape[-1],
        with_strides(gradient),
        logsum,
        delta,
    )
    grad_query = grad_key = grad_value = grad_bias = None
    if needed[1] or needed[2]:
        grad_key, grad_value = _memory_for(memory.key, key), _memory_for(memory.value, value)
        block_q = tile_size(q, 64 if is_wide else 32 if exact else 16)
        block_k = tile_size(k, 64 if is_wide or exact else LARGEST_TILE)
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
    if needed[0]:
        grad_query = _memory_for(memory.query, query)
        block_q, block_k = tile_size(q, 64 if is_wide or exact else LARGEST_TILE), tile_size(k, 32)
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
            **launch_options(block_q, stages=3 if is_wide else 2),
        )
    if needed[4] and bias is not None:
        grad_bias = _bias_gradient(query, k, inputs, bias)
    return grad_query, grad_key, grad_value, grad_bias


def _bias_gradient(query: Tensor, k: int, inputs: tuple[Any, ...], bias: Tensor) -> Tensor:
    """Return the gradient of the bias, summed over parts of the rows, which occupy all multiprocessors."""
    b, n, h, q, c = query.shape
    exact = query.dtype == torch.float32
    side = 32 if exact and c > 32 else 64
    # Four warps that load two rows ahead were the fastest of 12 variants on an H100; on other GPUs they would spill.
    is_wide = multiplies_from_shared_memory(query.device) and not exact
    block_q, block_k = tile_size(q, side), tile_size(k, side)
    tiles = cdiv(q, block_q) * cdiv(k, block_k) * h
    rows_of_part = cdiv(n, max(1, min(n, _PROGRAMS // (tiles * b))))
    parts = cdiv(n, rows_of_part)
    grad_bias = query.new_empty(parts, b, h, q, k, dtype=torch.float32)
    to_bias[(tiles * parts, b)](
        inputs,
        grad_bias,
        (n, h, q, k),
        rows_of_part,
        c**-0.5,
        LOG2E,
        channels=c,
        width=max(16, c),
        block_q=block_q,
        block_k=block_k,
        num_warps=max(1, block_q // (16 if is_wide else 8)),
        num_stages=3 if is_wide else 2,
    )
    return summed(grad_bias, bias[..., :k])[0]


def _memory_for(memory: Tensor | None, x: Tensor) -> Tensor:
    return _like(x) if memory is None else memory


def _like(x: Tensor) -> Tensor:
    """Return memory for a gradient as a view of (b n q h c), the layout that projections need."""
    b, n, h, q, c = x.shape
    return x.new_empty(b, n, q, h, c).transpose(2, 3)
