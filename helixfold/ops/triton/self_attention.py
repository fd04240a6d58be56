"""Self-attention from a stream to its change: Triton's norm and attention, and cuBLAS's products, in one function.

The gradients of queries, keys, values and gates lie side by side in one tensor, so that one product gives the gradients
of their weights and two give the gradient of the norm's output. Saved are the stream, its norm, the projections, and
attention's result.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from helixfold.ops.dispatch import wants_gradient
from helixfold.ops.triton.attention import attend
from helixfold.ops.triton.attention_gradients import GradientMemory, attention_backward
from helixfold.ops.triton.attention_tiles import aligned, mask_terms
from helixfold.ops.triton.layer_norm import norm_gradients, normed_into
from helixfold.ops.weights import SelfAttentionWeights


def self_attention_triton(
    x: Tensor, mask: Tensor, bias: Tensor | None, weights: SelfAttentionWeights, heads: int
) -> Tensor:
    """Compute `self_attention` on a CUDA device."""
    norm, qkv, gate, out = weights
    parameters: list[Any] = [*norm, qkv.weight.to(x.dtype), *gate.to(x.dtype), *out.to(x.dtype)]
    if wants_gradient(x, bias, *parameters):
        return _SelfAttention.apply(x, mask, bias, heads, *parameters)
    return _forward(x, mask, bias, heads, *parameters, save=False)[0]


def _forward(
    x: Tensor,
    mask: Tensor,
    bias: Tensor | None,
    heads: int,
    scale: Tensor,
    offset: Tensor,
    qkv_weight: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    *,
    save: bool,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return the change, and if `save` what the gradients need."""
    b, n, k, _ = x.shape
    # In the order in which attention reads it, whatever the stream's is.
    normed = normed_into(x.new_empty(x.shape), x, scale, offset).flatten(0, 2)
    qkv, gate = normed @ qkv_weight.T, torch.addmm(gate_bias, normed, gate_weight.T)
    if not save:
        del normed
    query, key, value = rearrange(qkv, "(b n k) (three h d) -> three b n h k d", b=b, n=n, three=3, h=heads)
    gates = rearrange(gate, "(b n k) (h d) -> b n h k d", b=b, n=n, h=heads)
    terms = (*mask_terms(mask), None if bias is None else aligned(bias))
    attended, logsum = attend(query, key, value, *terms, gates, save=save)
    if not save:
        del qkv, gate, query, key, value, gates
    change = torch.addmm(out_bias, rearrange(attended, "b n h k d -> (b n k) (h d)"), out_weight.T).view(b, n, k, -1)
    return change, (normed, qkv, gate, *terms, attended, logsum) if save else ()


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, bias: Tensor | None, heads: int, *parameters: Tensor) -> Tensor:
        change, saved = _forward(x, mask, bias, heads, *parameters, save=True)
        ctx.heads = heads
        ctx.save_for_backward(x, *parameters, *saved)
        return change

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, offset, qkv_weight, gate_weight, _, out_weight, _, *saved = ctx.saved_tensors
        normed, qkv, gate, mask_bias, has_keys, bias, attended, logsum = saved
        (b, n, k, _), width = x.shape, len(gate_weight)
        rows = gradient.reshape(b * n * k, -1)
        grad_attended = rearrange(rows @ out_weight, "(b n k) (h d) -> b n h k d", b=b, n=n, h=ctx.heads)
        grad_out_weight = rows.T @ rearrange(attended, "b n h k d -> (b n k) (h d)")
        # The gradients of queries, keys, values and gates, [(b n k) (four h d)].
        packed = x.new_empty(b * n * k, 4 * width)
        memory = GradientMemory(
            *rearrange(packed, "(b n k) (four h d) -> four b n h k d", b=b, n=n, four=4, h=ctx.heads)
        )
        query, key, value = rearrange(qkv, "(b n k) (three h d) -> three b n h k d", b=b, n=n, three=3, h=ctx.heads)
        gates = rearrange(gate, "(b n k) (h d) -> b n h k d", b=b, n=n, h=ctx.heads)
        needed = (True, True, True, False, ctx.needs_input_grad[2], True)
        grad_bias = attention_backward(
            grad_attended, needed, query, key, value, mask_bias, has_keys, bias, gates, attended, logsum, memory
        )[4]
        grad_weights = packed.T @ normed
        grad_normed = packed[:, : 3 * width] @ qkv_weight
        grad_normed.addmm_(packed[:, 3 * width :], gate_weight)
        grad_x, (grad_scale, grad_offset, grad_out_bias, grad_gate_bias) = norm_gradients(
            grad_normed.view(x.shape), x, scale, offset, (rows.view(x.shape), packed[:, 3 * width :].view(x.shape))
        )
        grad_maps = grad_weights[: 3 * width], grad_weights[3 * width :], grad_gate_bias, grad_out_weight, grad_out_bias
        return grad_x, None, grad_bias, None, grad_scale, grad_offset, *grad_maps
