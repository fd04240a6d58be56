"""Global attention on a CPU in blocks of rows, which stay in the cache from the layer norm to the output map."""

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from helixfold.ops.cpu.attention import AttentionBlock
from helixfold.ops.cpu.blocks import Scratch, row_blocks
from helixfold.ops.cpu.fused_norm import MapGradient, Statistics, fused, norm_gradient, normalised
from helixfold.ops.cpu.head_gates import attended_gradient, gate_heads, gate_heads_and_logits_gradient
from helixfold.ops.cpu.loops import compiled
from helixfold.ops.cpu.products import mapped, product
from helixfold.ops.mask_bias import mask_bias
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import recomputed
from helixfold.ops.weights import Affine, GlobalAttentionWeights

# Bytes of the projections of a block, per core: enough for fast matrix products.
_BLOCK_BYTES = 2 * 2**20


def global_attention_rows(x: Tensor, mask: Tensor, weights: GlobalAttentionWeights, heads: int) -> Tensor:
    """Compute `global_attention` on a CPU; its backward pass recomputes everything from the arguments.

    The query map must have no bias.
    """
    norm, query, key, value, gate, out = weights
    scale = (len(query.weight) // heads) ** -0.5
    # The norm is converted once, so that the gradients of both uses are added before they are rounded.
    norm = norm.to(torch.float32)
    # The mean has an additional channel that is 1, or 0 in a fully masked row. Its weight is the offset of the norm.
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
    """Return the change of `x`; `parameters` are the maps with fused norm, and the output map."""
    dtype = product_dtype(x.dtype)
    query_weight, weight, offset, out_weight, out_bias = (parameter.to(dtype) for parameter in parameters)
    change = torch.empty_like(x)
    scratch = Scratch(x.device)
    for index in row_blocks(x, weight, _BLOCK_BYTES):
        normed = normalised(x[index], dtype)
        masks = mask[index], None if mask_bias is None else mask_bias[index]
        block = _block(x[index], *normed, *masks, query_weight, weight, offset, scratch)
        block.attention.forward(block.attended)
        gated = gate_heads(block.heads, block.logits)
        # Free the projections before the output map.
        del normed, block
        change[index] = mapped(gated, out_weight, out_bias).view(change[index].shape)
    return change


def _global_attention_gradients(
    needed: tuple[bool, ...], gradient: Tensor, x: Tensor, mask: Tensor, mask_bias: Tensor | None, *parameters: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the arguments of `_global_attention`, given the `gradient` of its result."""
    query_weight, weight, offset, out_weight, _ = (parameter.to(product_dtype(x.dtype)) for parameter in parameters)
    grad_x = torch.empty_like(x)
    grad_query_map = MapGradient(needs_weight=needed[3], needs_bias=False)
    grad_maps = MapGradient(needs_weight=needed[4], needs_bias=needed[5])
    grad_out = MapGradient(needs_weight=needed[6], needs_bias=needed[7])
    scratch = Scratch(x.device)
    for index in row_blocks(x, weight, _BLOCK_BYTES):
        inputs, statistics = normalised(x[index], weight.dtype)
        masks = mask[index], None if mask_bias is None else mask_bias[index]
        block = _block(x[index], inputs, statistics, *masks, query_weight, weight, offset, scratch)
        grad_change = gradient[index].reshape(-1, len(out_weight)).to(weight.dtype)
        grad_gated = product(grad_change, out_weight)
        grad_attended = torch.empty_like(block.attended)
        attended_gradient(grad_gated, block.logits, grad_attended.view(block.heads.shape))
        grad_projected = scratch("grad projected", len(inputs), len(weight), dtype=weight.dtype)
        widths = [tensor.shape[-1] for tensor in (block.attention.key, block.attention.value, block.logits)]
        grad_key, grad_value, grad_logits = grad_projected.split(widths, -1)
        grad_query = torch.empty_like(block.attended)
        grad_key, grad_value = (each.view(block.attention.key.shape) for each in (grad_key, grad_value))
        grad_heads = grad_query, grad_key, grad_value
        block.attention.backward(grad_attended, block.attended, grad_heads, grad_bias=None)
        grad_out.add(grad_change.mT, gate_heads_and_logits_gradient(block.heads, block.logits, grad_gated, grad_logits))
        grad_maps.add(grad_projected.mT, inputs)
        grad_query = grad_query.flatten(1)
        grad_query_map.add(grad_query.mT, block.means)
        grad_normed = product(grad_projected, weight)
        _add_weighted(grad_normed, block.weights, (grad_query @ query_weight)[:, :-1])
        norm_gradient(grad_normed, x[index], statistics, grad_x[index])
    return grad_x, None, None, grad_query_map.weight, grad_maps.weight, grad_maps.bias, grad_out.weight, grad_out.bias


class _Block(NamedTuple):
    """The attention and gates of some rows of a sample."""

    weights: Tensor  # [n k], of the elements in the mean of their row
    means: Tensor  # [n c+1]
    attention: AttentionBlock
    logits: Tensor  # [(n k) h*d], of the gates
    attended: Tensor  # [n 1 h d], memory for the result of the attention

    @property
    def heads(self) -> Tensor:
        """The result of the attention as one head with one query [n 1 1 h*d]."""
        return self.attended.view(len(self.attended), 1, 1, -1)


def _block(
    x: Tensor,
    inputs: Tensor,
    statistics: Statistics,
    mask: Tensor,
    mask_bias: Tensor | None,
    query_weight: Tensor,
    weight: Tensor,
    offset: Tensor,
    scratch: Scratch,
) -> _Block:
    """Return a block of rows `x` with its projections, given its normalised elements [m c] in the dtype of products."""
    channels = len(query_weight)
    head_channels = (len(weight) - channels) // 2
    # Adding 1e-10 keeps fully masked rows finite.
    weights = mask.float().contiguous()
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-10)
    means = torch.cat([_means(x, statistics, weights), weights.sum(-1, keepdim=True)], -1).to(inputs.dtype)
    projected = mapped(inputs, weight, offset)
    key, value, logits = projected.split((head_channels, head_channels, channels), -1)
    key, value = (rearrange(each, "(n k) d -> n 1 k d", n=len(weights)) for each in (key, value))
    # All heads become queries of one head of keys.
    query = rearrange(means @ query_weight.mT, "n (h d) -> n 1 h d", d=head_channels)
    attention = AttentionBlock(
        query=query,
        key=key,
        value=value,
        mask_bias=mask_bias,
        bias=None,
        scratch=scratch,
    )
    return _Block(weights, means, attention, logits, torch.empty_like(query))


def _means(x: Tensor, statistics: Statistics, weights: Tensor) -> Tensor:
    """Return the weighted mean of the normalised elements [n k c] of each row, in float32, with weights [n k]."""
    if loops := compiled("sums", x):
        return loops.weighted_sums(x, *statistics, weights)
    mean, scale = (each.view(*weights.shape, 1) for each in statistics)
    return torch.bmm((weights[..., None] * scale).mT, x.float() - mean)[:, 0]


def _add_weighted(x: Tensor, weights: Tensor, terms: Tensor) -> None:
    """Add to each element [(n k) c] in place its weight [n k] times the term of its row [n c]."""
    terms = terms.float().contiguous()
    if loops := compiled("sums", x):
        loops.add_weighted(x, weights, terms)
    else:
        rows = x.view(*weights.shape, -1)
        rows.copy_(torch.addcmul(rows.float(), weights[..., None], terms[:, None]))
