"""Global attention on a CPU in blocks of rows, which stay in the cache from the stream to its change."""

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from helixfold.ops.cpu.attention import AttentionBlock
from helixfold.ops.cpu.blocks import Scratch, row_blocks
from helixfold.ops.cpu.fused_norm import MapGradient, fused, norm_gradient, normalised
from helixfold.ops.cpu.products import mapped, product
from helixfold.ops.mask_bias import mask_bias
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import recomputed
from helixfold.ops.weights import Affine, GlobalAttentionWeights

# Bytes of a block's projections per core: enough for fast matrix products.
_BLOCK_BYTES = 2 * 2**20


def global_attention_rows(x: Tensor, mask: Tensor, weights: GlobalAttentionWeights, heads: int) -> Tensor:
    """Compute `global_attention` on a CPU, saving only the arguments; the query map must have no bias."""
    norm, query, key, value, gate, out = weights
    scale = (len(query.weight) // heads) ** -0.5
    # Converted once, so that the gradients of both uses are added before they are rounded.
    norm = norm.to(torch.float32)
    # The mean gets a last channel that is 1, or 0 if the row is all masked, whose weight is the norm's offset.
    weight, offset = fused(norm, Affine(scale * query.weight.float()))
    mean_query_weight = torch.cat([weight, offset[:, None]], 1)
    out_bias = offset.new_zeros(len(out.weight)) if out.bias is None else out.bias.float()
    return recomputed(
        _global_attention,
        _global_attention_gradients,
        x,
        mask,
        mask_bias(mask),
        mean_query_weight,
        *fused(norm, key, value, gate),
        out.weight.float(),
        out_bias,
    )


def _global_attention(x: Tensor, mask: Tensor, mask_bias: Tensor | None, *parameters: Tensor) -> Tensor:
    dtype = product_dtype(x.dtype)
    query_weight, weight, offset, out_weight, out_bias = (parameter.to(dtype) for parameter in parameters)
    change = torch.empty_like(x)
    scratch = Scratch(x.device)
    for index in row_blocks(x, weight, _BLOCK_BYTES):
        normed, _ = normalised(x[index])
        block = _block(normed, normed.to(dtype), index, mask, mask_bias, query_weight, weight, offset, scratch)
        block.attention.forward(block.attended)
        gated = block.gates.mul_(block.attended.flatten(2)).flatten(0, 1)
        # Freed before the output is mapped.
        del normed, block
        change[index] = mapped(gated, out_weight, out_bias).view(change[index].shape)
        # The gates are part of the projections, which are freed before the next block's are made.
        del gated
    return change


def _global_attention_gradients(
    needed: tuple[bool, ...], gradient: Tensor, x: Tensor, mask: Tensor, mask_bias: Tensor | None, *parameters: Tensor
) -> tuple[Tensor | None, ...]:
    query_weight, weight, offset, out_weight, _ = (parameter.to(product_dtype(x.dtype)) for parameter in parameters)
    grad_x = torch.empty_like(x)
    grad_query_map = MapGradient(needs_weight=needed[3], needs_bias=False)
    grad_maps = MapGradient(needs_weight=needed[4], needs_bias=needed[5])
    grad_out = MapGradient(needs_weight=needed[6], needs_bias=needed[7])
    scratch = Scratch(x.device)
    for index in row_blocks(x, weight, _BLOCK_BYTES):
        normed, statistics = normalised(x[index])
        inputs = normed.to(weight.dtype)
        block = _block(normed, inputs, index, mask, mask_bias, query_weight, weight, offset, scratch)
        grad_change = gradient[index].reshape(-1, len(out_weight)).to(weight.dtype)
        grad_gated = product(grad_change, out_weight).view(block.gates.shape)
        grad_attended = rearrange((grad_gated * block.gates).sum(1), "n (h d) -> n 1 h d", h=block.attended.shape[2])
        grad_projected = scratch("grad projected", *block.gates.shape[:2], len(weight), dtype=weight.dtype)
        widths = [tensor.shape[-1] for tensor in (block.attention.key, block.attention.value, block.gates)]
        grad_key, grad_value, grad_gates = grad_projected.split(widths, -1)
        grad_query = torch.empty_like(block.attended)
        grad_heads = grad_query, grad_key[:, None], grad_value[:, None]
        block.attention.backward(grad_attended, block.attended, grad_heads, grad_bias=None)
        attended = block.attended.flatten(2)
        grad_out.add(grad_change.mT, (block.gates * attended).flatten(0, 1))
        grad_gates.copy_(torch.ops.aten.sigmoid_backward(grad_gated.mul_(attended), block.gates))
        grad_projected = grad_projected.flatten(0, 1)
        grad_maps.add(grad_projected.mT, inputs)
        grad_query = grad_query.flatten(1)
        grad_query_map.add(grad_query.mT, block.means)
        grad_normed = product(grad_projected, weight).float()
        grad_mean = (grad_query @ query_weight)[:, :-1].float()
        grad_normed.view(*block.weights.shape, -1).addcmul_(block.weights[..., None], grad_mean[:, None])
        norm_gradient(grad_normed, x[index], statistics, grad_x[index])
    return grad_x, None, None, grad_query_map.weight, grad_maps.weight, grad_maps.bias, grad_out.weight, grad_out.bias


class _Block(NamedTuple):
    """Some rows of a sample."""

    weights: Tensor  # [n k], of each element in its row's mean
    means: Tensor  # [n c+1]
    attention: AttentionBlock
    gates: Tensor  # [n k h*d]
    attended: Tensor  # [n 1 h d], memory for the result of the attention


def _block(
    normed: Tensor,
    inputs: Tensor,
    index: tuple[int, slice],
    mask: Tensor,
    mask_bias: Tensor | None,
    query_weight: Tensor,
    weight: Tensor,
    offset: Tensor,
    scratch: Scratch,
) -> _Block:
    """Return a block with its projections, from normalised elements [m c] in float32 and in the dtype of products."""
    channels = len(query_weight)
    head_channels = (len(weight) - channels) // 2
    # 1e-10 keeps rows whose elements are all masked finite.
    weights = mask[index].float()
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-10)
    mean = torch.bmm(weights[:, None], normed.view(*weights.shape, -1))[:, 0]
    means = torch.cat([mean, weights.sum(-1, keepdim=True)], -1).to(inputs.dtype)
    projected = mapped(inputs, weight, offset).view(*weights.shape, -1)
    key, value, gates = projected.split((head_channels, head_channels, channels), -1)
    # All heads become queries of the one head of keys.
    query = rearrange(means @ query_weight.mT, "n (h d) -> n 1 h d", d=head_channels)
    attention = AttentionBlock(
        query=query,
        key=key[:, None],
        value=value[:, None],
        mask_bias=None if mask_bias is None else mask_bias[index],
        bias=None,
        scratch=scratch,
    )
    return _Block(weights, means, attention, gates.sigmoid_(), torch.empty_like(query))
