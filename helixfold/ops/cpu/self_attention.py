"""Self-attention on a CPU in blocks of rows, which stay in the cache from the layer norm to the output map."""

from collections.abc import Sequence

import torch
from einops import rearrange
from torch import Tensor

from helixfold.ops.cpu.attention import AttentionBlock, float32_bias
from helixfold.ops.cpu.blocks import Scratch, row_blocks
from helixfold.ops.cpu.fused_norm import MapGradient, fused, norm_gradient, normalised
from helixfold.ops.cpu.head_gates import attended_gradient, gate_heads, gate_heads_and_logits_gradient
from helixfold.ops.cpu.products import mapped, product
from helixfold.ops.cpu.result import Result, change_or_sum
from helixfold.ops.linear import norm_linear
from helixfold.ops.mask_bias import mask_bias
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import SavedIntermediates
from helixfold.ops.residual import Residual
from helixfold.ops.weights import Affine, SelfAttentionWeights

# Bytes of the projections of a block, per core: enough for fast matrix products.
_BLOCK_BYTES = 4 * 2**20
# Minimum channels per byte of an element for which projections are saved: 256 channels in bfloat16. With fewer channels
# or in float32, saving them gains less time for the same memory.
_SAVED_CHANNELS = 128


def self_attention_rows(
    x: Tensor,
    mask: Tensor,
    bias: Tensor | Affine | None,
    weights: SelfAttentionWeights,
    heads: int,
    *,
    residual: Residual | None = None,
) -> Tensor:
    """Compute `self_attention` on a CPU, and add it to the stream of `residual`, if any.

    The attended values, and projections of many channels in lower precisions, are saved for the gradients or
    recomputed.
    """
    norm, qkv, gate, out = weights
    if isinstance(bias, Affine):
        bias = norm_linear(x, norm, bias).permute(0, 3, 1, 2).contiguous()
    channels = len(gate.weight)
    # The scale of the logits becomes part of the map to the queries.
    scale = torch.ones(len(qkv.weight), device=x.device)
    scale[:channels] = (channels // heads) ** -0.5
    scaled = Affine(scale[:, None] * qkv.weight, None if qkv.bias is None else scale * qkv.bias)
    out_bias = scale.new_zeros(len(out.weight)) if out.bias is None else out.bias.float()
    return change_or_sum(
        residual,
        _self_attention,
        _self_attention_gradients,
        x,
        mask_bias(mask),
        bias,
        *fused(norm, scaled, gate),
        out.weight.float(),
        out_bias,
        heads=heads,
        can_save=True,
    )


def self_attention_adding_rows(
    residual: Residual,
    x: Tensor,
    mask: Tensor,
    bias: Tensor | Affine | None,
    weights: SelfAttentionWeights,
    heads: int,
) -> Tensor:
    """Compute `self_attention` on a CPU, and add it to the stream of `residual`."""
    return self_attention_rows(x, mask, bias, weights, heads, residual=residual)


def _self_attention(
    x: Tensor,
    mask_bias: Tensor | None,
    bias: Tensor | None,
    *parameters: Tensor,
    heads: int,
    saved: SavedIntermediates,
    residual: Residual | None = None,
) -> Tensor:
    """Return the change of `x`, or the stream of `residual` plus the change.

    `parameters` are the maps to queries, keys, values and gates, and the output map.
    """
    weight, offset, out_weight, out_bias = (parameter.to(product_dtype(x.dtype)) for parameter in parameters)
    result, bias = Result(x, residual), float32_bias(bias)
    scratch, (b, n, k, _), channels = Scratch(x.device), x.shape, len(weight) // 4
    attended_buffer = saved.buffer(b, n, heads, k, channels // heads, like=weight)
    projected_buffer = saved.buffer(b, n, k, len(weight), like=weight) if _saves_projections(weight) else None
    for index in row_blocks(x, weight, _BLOCK_BYTES):
        projected = mapped(normalised(x[index], weight.dtype)[0], weight, offset)
        if projected_buffer is not None:
            projected_buffer[index] = projected.view(projected_buffer[index].shape)
        attention, logits = _block(projected, index, mask_bias, bias, heads, scratch)
        if attended_buffer is None:
            attended = scratch("attended", *attention.query.shape, dtype=weight.dtype)
        else:
            attended = attended_buffer[index]
        attention.forward(attended)
        gated = gate_heads(attended, logits)
        # Free projections that are not saved before the output map.
        del projected, attention, logits
        result.write(index, mapped(gated, out_weight, out_bias))
    return result.tensor


def _self_attention_gradients(
    needed: tuple[bool, ...],
    gradient: Tensor,
    x: Tensor,
    mask_bias: Tensor | None,
    bias: Tensor | None,
    *parameters: Tensor,
    heads: int,
    saved: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the arguments of `_self_attention`, given the `gradient` of its result."""
    weight, offset, out_weight, _ = (parameter.to(product_dtype(x.dtype)) for parameter in parameters)
    grad_x = torch.empty_like(x)
    grad_bias = None if bias is None or not needed[2] else torch.zeros(bias.shape, device=x.device)
    grad_maps = MapGradient(needs_weight=needed[3], needs_bias=needed[4])
    grad_out = MapGradient(needs_weight=needed[5], needs_bias=needed[6])
    scratch, faster_bias = Scratch(x.device), float32_bias(bias)
    for index in row_blocks(x, weight, _BLOCK_BYTES):
        inputs, statistics = normalised(x[index], weight.dtype)
        projected = saved[1][index].flatten(0, 1) if len(saved) > 1 else mapped(inputs, weight, offset)
        attention, logits = _block(projected, index, mask_bias, faster_bias, heads, scratch)
        shape = attention.query.shape
        attended = saved[0][index] if saved else scratch("attended", *shape, dtype=weight.dtype)
        grad_change = gradient[index].reshape(-1, len(out_weight)).to(weight.dtype)
        grad_gated = product(grad_change, out_weight)
        grad_attended = scratch("grad attended", *shape, dtype=weight.dtype)
        attended_gradient(grad_gated, logits, grad_attended)
        grad_projected = scratch("grad projected", len(grad_gated), len(weight), dtype=weight.dtype)
        *grad_heads, grad_logits = grad_projected.chunk(4, 1)
        grad_query, grad_key, grad_value = (
            rearrange(grad, "(n k) (h d) -> n h k d", n=len(grad_attended), h=heads) for grad in grad_heads
        )
        attention.backward(
            grad_attended,
            None if saved else attended,
            (grad_query, grad_key, grad_value),
            None if grad_bias is None else grad_bias[index[0]],
        )
        grad_out.add(grad_change.mT, gate_heads_and_logits_gradient(attended, logits, grad_gated, grad_logits))
        grad_maps.add(grad_projected.mT, inputs)
        norm_gradient(product(grad_projected, weight), x[index], statistics, grad_x[index])
    grad_bias = None if bias is None or grad_bias is None else grad_bias.to(bias.dtype)
    return grad_x, None, grad_bias, grad_maps.weight, grad_maps.bias, grad_out.weight, grad_out.bias


def _saves_projections(weight: Tensor) -> bool:
    """Return whether projections are worth saving: a byte of them must save many products."""
    return weight.shape[1] >= _SAVED_CHANNELS * weight.itemsize


def _block(
    projected: Tensor,
    index: tuple[int, slice],
    mask_bias: Tensor | None,
    bias: Tensor | None,
    heads: int,
    scratch: Scratch,
) -> tuple[AttentionBlock, Tensor]:
    """Return the attention of a block of rows and the logits of its gates [m h*d], given projections [m 4*h*d]."""
    sample, rows = index
    n, channels = rows.stop - rows.start, projected.shape[1] // 4
    query, key, value = rearrange(projected[:, : 3 * channels], "(n k) (t h d) -> t n h k d", n=n, t=3, h=heads)
    attention = AttentionBlock(
        query=query,
        key=key,
        value=value,
        mask_bias=None if mask_bias is None else mask_bias[index],
        bias=None if bias is None else bias[sample],
        scratch=scratch,
    )
    return attention, projected[:, 3 * channels :]
