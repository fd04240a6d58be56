"""Self-attention as one autograd function, with layer norm and attention by Triton and products by cuBLAS.

The gradients of queries, keys, values and gates, and of the bias of the logits if it is a map of the same rows, are
packed side by side in one tensor. One product then gives the gradients of their weights, and another the gradient of
the output of the norm. The function saves the stream, the projections, the result of attention, and the output of the
norm if the weights that read it learn.
"""

from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from helixfold.ops.dispatch import wants_gradient
from helixfold.ops.residual import Adding, Residual
from helixfold.ops.triton.attention import attend
from helixfold.ops.triton.attention_gradients import GradientMemory, attention_backward, gradients_from_attended
from helixfold.ops.triton.attention_tiles import aligned, mask_terms
from helixfold.ops.triton.language import cdiv
from helixfold.ops.triton.layer_norm import norm_gradients, normed_into
from helixfold.ops.triton.output_map import added_map, can_map, map_gradients
from helixfold.ops.triton.sums import weight_gradients
from helixfold.ops.weights import Affine, SelfAttentionWeights

# The row length of the packed gradients is a multiple of this, so that kernels write 16 bytes at a time.
_ALIGNED = 16


def self_attention_triton(
    x: Tensor, mask: Tensor, bias: Tensor | Affine | None, weights: SelfAttentionWeights, heads: int
) -> Tensor:
    """Compute `self_attention` on a CUDA device."""
    return _run(None, x, mask, bias, weights, heads)


def self_attention_adding_triton(
    residual: Residual,
    x: Tensor,
    mask: Tensor,
    bias: Tensor | Affine | None,
    weights: SelfAttentionWeights,
    heads: int,
) -> Tensor | None:
    """Compute `self_attention` on a CUDA device and add it to its input stream; return None if this is not supported.

    The residual must be for `x` itself, and the kernels must support its dtype and channels.
    """
    if residual.stream is not x or not can_map(x):
        return None
    return _run(residual.adding, x, mask, bias, weights, heads)


def _run(
    adding: Adding,
    x: Tensor,
    mask: Tensor,
    bias: Tensor | Affine | None,
    weights: SelfAttentionWeights,
    heads: int,
) -> Tensor:
    """Compute the change, or with `adding` the stream plus the change, with autograd only if gradients are needed."""
    norm, qkv, gate, out = weights
    bias, bias_weight = (None, bias.weight.to(x.dtype)) if isinstance(bias, Affine) else (bias, None)
    parameters: list[Any] = [bias_weight, *norm, qkv.weight.to(x.dtype), *gate.to(x.dtype), *out.to(x.dtype)]
    if wants_gradient(x, bias, *parameters):
        return _SelfAttention.apply(x, mask, bias, heads, adding, *parameters)
    return _forward(x, mask, bias, heads, adding, *parameters, save=False)[0]


def _forward(
    x: Tensor,
    mask: Tensor,
    bias: Tensor | None,
    heads: int,
    adding: Adding,
    bias_weight: Tensor | None,
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
    """Return the change, or with `adding` the stream plus the change, and if `save` the tensors for the gradients."""
    b, n, k, _ = x.shape
    # In the memory layout that attention reads, for any layout of the stream.
    normed = normed_into(x.new_empty(x.shape), x, scale, offset).flatten(0, 2)
    qkv, gate = normed @ qkv_weight.T, torch.addmm(gate_bias, normed, gate_weight.T)
    if bias_weight is not None:
        # Heads are first, the layout that attention reads.
        bias = torch.bmm(bias_weight.expand(b, -1, -1), normed.view(b, n * k, -1).mT).view(b, heads, n, k)
    if not save:
        del normed
    query, key, value = rearrange(qkv, "(b n k) (three h d) -> three b n h k d", b=b, n=n, three=3, h=heads)
    gates = rearrange(gate, "(b n k) (h d) -> b n h k d", b=b, n=n, h=heads)
    terms = (*mask_terms(mask), None if bias is None else aligned(bias))
    attended, logsum = attend(query, key, value, *terms, gates, save=save)
    if not save:
        del qkv, gate, query, key, value, gates
    flat = rearrange(attended, "b n h k d -> (b n k) (h d)")
    if adding is None:
        result = torch.addmm(out_bias, flat, out_weight.T).view(b, n, k, -1)
    else:
        result = added_map(flat, out_weight, out_bias, Residual(x, *adding))
    return result, (normed, qkv, gate, *terms, attended, logsum) if save else ()


class _Needed(NamedTuple):
    """Which arguments of the autograd function need a gradient."""

    x: bool
    mask: bool
    bias: bool
    heads: bool
    adding: bool
    bias_weight: bool
    scale: bool
    offset: bool
    qkv_weight: bool
    gate_weight: bool
    gate_bias: bool
    out_weight: bool
    out_bias: bool


class _SelfAttention(torch.autograd.Function):
    """Self-attention as one autograd function with the arguments of `_forward`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mask: Tensor,
        bias: Tensor | None,
        heads: int,
        adding: Adding,
        bias_weight: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        result, (normed, *saved) = _forward(x, mask, bias, heads, adding, bias_weight, *parameters, save=True)
        ctx.heads, ctx.adds, (dropout_mask, _) = heads, adding is not None, adding or (None, False)
        needed = _Needed(*ctx.needs_input_grad)
        norm_is_read = needed.bias_weight or needed.qkv_weight or needed.gate_weight
        ctx.save_for_backward(x, bias_weight, *parameters, dropout_mask, normed if norm_is_read else None, *saved)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the stream, the bias and all parameters, in the order of the arguments."""
        x, bias_weight, scale, offset, qkv_weight, gate_weight, _, out_weight, _, *saved = ctx.saved_tensors
        dropout_mask, normed, qkv, gate, mask_bias, has_keys, bias, attended, logsum = saved
        (b, n, k, _), width = x.shape, len(gate_weight)
        needed = _Needed(*ctx.needs_input_grad)
        # Gradients of queries, keys, values and gates [(b n k) (four h d)], then of the bias [(b n k) h].
        of_bias = 0 if bias_weight is None else len(bias_weight)
        packed = x.new_empty(b * n * k, 4 * width + cdiv(of_bias, _ALIGNED) * _ALIGNED)[:, : 4 * width + of_bias]
        gradients = packed.split([3 * width, width, of_bias], 1)
        memory = GradientMemory(
            *rearrange(packed[:, : 4 * width], "(b n k) (four h d) -> four b n h k d", b=b, n=n, four=4, h=ctx.heads)
        )
        query, key, value = rearrange(qkv, "(b n k) (three h d) -> three b n h k d", b=b, n=n, three=3, h=ctx.heads)
        flat_attended = rearrange(attended, "b n h k d -> (b n k) (h d)")
        terms = mask_bias, has_keys, bias
        needed_here = (True, True, True, False, needed.bias or bias_weight is not None, True)
        rows: Tensor | None
        if can_map(x):
            rows, grad_attended, delta = map_gradients(
                gradient,
                dropout_mask,
                out_weight,
                flat_attended,
                gate,
                gradients[1],
                ctx.heads,
                needs_dropped=needed.out_weight,
            )
            grad_attended = rearrange(grad_attended, "(b n k) (h d) -> b n h k d", b=b, n=n, h=ctx.heads)
            grad_bias = gradients_from_attended(
                grad_attended, needed_here, query, key, value, *terms, logsum, delta, memory
            )[3]
        else:
            rows = gradient.reshape(b * n * k, -1)
            grad_attended = rearrange(rows @ out_weight, "(b n k) (h d) -> b n h k d", b=b, n=n, h=ctx.heads)
            gates = rearrange(gate, "(b n k) (h d) -> b n h k d", b=b, n=n, h=ctx.heads)
            grad_bias = attention_backward(
                grad_attended, needed_here, query, key, value, *terms, gates, attended, logsum, memory
            )[4]
        grad_out_weight = rows.T @ flat_attended if needed.out_weight and rows is not None else None
        if bias_weight is not None and grad_bias is not None:
            gradients[2].copy_(rearrange(grad_bias, "b h n k -> (b n k) h"))
            grad_bias = None
        weights = [each for each in (qkv_weight, gate_weight, bias_weight) if each is not None]
        learn = [needed.qkv_weight, needed.gate_weight, needed.bias_weight][: len(weights)]
        grad_weights = weight_gradients(gradients[: len(weights)], packed, normed, learn)
        grad_qkv_weight, grad_gate_weight, grad_bias_weight = (*grad_weights, None)[:3]
        grad_normed, grad_gate = packed @ torch.cat(weights), gradients[1]
        others = (gradient, grad_gate.view(x.shape)) if needed.gate_bias or needed.out_bias else ()
        grad_x, sums = norm_gradients(
            grad_normed.view(x.shape),
            x,
            scale,
            offset,
            others,
            added=gradient if ctx.adds else None,
            added_factor=dropout_mask,
            learns=needed.scale or needed.offset or bool(others),
        )
        grad_scale, grad_offset, grad_out_bias, grad_gate_bias = (*sums, *[None] * 4)[:4]
        grad_maps = grad_qkv_weight, grad_gate_weight, grad_gate_bias, grad_out_weight, grad_out_bias
        return grad_x, None, grad_bias, None, None, grad_bias_weight, grad_scale, grad_offset, *grad_maps
