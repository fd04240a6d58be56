"""Global attention in blocks of rows that stay in the cache all the way from the stream to its change."""

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from helixfold.ops.cpu.attention import Rows
from helixfold.ops.cpu.blocks import Scratch, rows_of_samples
from helixfold.ops.cpu.folded_norm import MapGradient, folded, norm_gradient, normalised
from helixfold.ops.cpu.products import mapped, product
from helixfold.ops.mask_bias import mask_bias
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import recomputed
from helixfold.ops.weights import Affine, GlobalAttentionWeights

# Of a block's projections, for each core: products are large enough to be fast.
_BLOCK_BYTES = 2 * 2**20


def global_attention_rows(x: Tensor, mask: Tensor, weights: GlobalAttentionWeights, heads: int) -> Tensor:
    """`global_attention` on a CPU; a training pass keeps its arguments only. The queries' map has no offset."""
    norm, query, key, value, gate, out = weights
    scale = (len(query.weight) // heads) ** -0.5
    # Cast once: the gradients of both uses are added before they are rounded.
    norm = norm.to(torch.float32)
    # The mean's own last channel is 1, or 0 of a row without elements, and so brings in the norm's offset or not.
    weight, offset = folded(norm, Affine(scale * query.weight.float()))
    of_mean = torch.cat([weight, offset[:, None]], 1)
    out_offset = offset.new_zeros(len(out.weight)) if out.bias is None else out.bias.float()
    return recomputed(
        _global_attention,
        _global_attention_gradients,
        x,
        mask,
        mask_bias(mask),
        of_mean,
        *folded(norm, key, value, gate),
        out.weight.float(),
        out_offset,
    )


def _global_attention(x: Tensor, mask: Tensor, penalty: Tensor | None, *parameters: Tensor) -> Tensor:
    query_weight, weight, offset, out_weight, out_offset = (each.to(product_dtype(x.dtype)) for each in parameters)
    change = torch.empty_like(x)
    scratch = Scratch(x.device)
    for index in rows_of_samples(x, weight, _BLOCK_BYTES):
        gated = _gated(x, index, mask, penalty, query_weight, weight, offset, scratch)
        change[index] = mapped(gated.flatten(0, 1), out_weight, out_offset).view(change[index].shape)
    return change


def _global_attention_gradients(
    needed: tuple[bool, ...], gradient: Tensor, x: Tensor, mask: Tensor, penalty: Tensor | None, *parameters: Tensor
) -> tuple[Tensor | None, ...]:
    query_weight, weight, offset, out_weight, _ = (each.to(product_dtype(x.dtype)) for each in parameters)
    of_x = torch.empty_like(x)
    of_query_map, of_maps, of_out = (MapGradient(each) for each in (query_weight, weight, out_weight))
    scratch = Scratch(x.device)
    for index in rows_of_samples(x, weight, _BLOCK_BYTES):
        normed, scale = normalised(x[index])
        inputs = normed.to(weight.dtype)
        block = _block(normed, inputs, index, mask, penalty, query_weight, weight, offset, scratch)
        of_change = gradient[index].reshape(-1, len(out_weight)).to(weight.dtype)
        of_gated = product(of_change, out_weight).view(block.gates.shape)
        of_found = rearrange((of_gated * block.gates).sum(1), "n (h d) -> n 1 h d", h=block.gathered.shape[2])
        of_projected = scratch("of projected", *block.gates.shape[:2], len(weight), dtype=weight.dtype)
        widths = [each.shape[-1] for each in (block.attention.key, block.attention.value, block.gates)]
        of_key, of_value, of_gates = of_projected.split(widths, -1)
        of_query = torch.empty_like(block.gathered)
        of_heads = of_query, of_key[:, None], of_value[:, None]
        block.attention.gather_again(of_found, block.gathered, of_heads, of_bias=None)
        found = block.gathered.flatten(2)
        of_out.add(of_change.mT, (block.gates * found).flatten(0, 1))
        of_gates.copy_(torch.ops.aten.sigmoid_backward(of_gated.mul_(found), block.gates))
        of_projected = of_projected.flatten(0, 1)
        of_maps.add(of_projected.mT, inputs)
        of_query = of_query.flatten(1)
        of_query_map.add(of_query.mT, block.means)
        of_normed = product(of_projected, weight).float()
        of_mean = (of_query @ query_weight)[:, :-1].float()
        of_normed.view(*block.shares.shape, -1).addcmul_(block.shares[..., None], of_mean[:, None])
        norm_gradient(of_normed, normed, scale, of_x[index])
    return of_x, None, None, of_query_map.weight, of_maps.weight, of_maps.bias, of_out.weight, of_out.bias


class _Block(NamedTuple):
    """Some rows of a sample."""

    shares: Tensor  # [n k] of each element in its row's mean
    means: Tensor  # [n c+1]
    attention: Rows
    gates: Tensor  # [n k h*d]
    gathered: Tensor  # [n 1 h d], room for what the attention finds


def _block(
    normed: Tensor,
    inputs: Tensor,
    index: tuple[int, slice],
    mask: Tensor,
    penalty: Tensor | None,
    query_weight: Tensor,
    weight: Tensor,
    offset: Tensor,
    scratch: Scratch,
) -> _Block:
    """A block up to its projections, from normalised elements [m c] in float32 and as they are multiplied."""
    width = len(query_weight)
    narrow = (len(weight) - width) // 2
    # 1e-10 keeps a row without elements finite.
    shares = mask[index].float()
    shares = shares / (shares.sum(-1, keepdim=True) + 1e-10)
    mean = torch.bmm(shares[:, None], normed.view(*shares.shape, -1))[:, 0]
    means = torch.cat([mean, shares.sum(-1, keepdim=True)], -1).to(inputs.dtype)
    projected = mapped(inputs, weight, offset).view(*shares.shape, -1)
    key, value, gates = projected.split((narrow, narrow, width), -1)
    # The heads are queries of one head: they share its keys.
    query = rearrange(means @ query_weight.mT, "n (h d) -> n 1 h d", d=narrow)
    attention = Rows(
        query=query,
        key=key[:, None],
        value=value[:, None],
        penalty=None if penalty is None else penalty[index],
        bias=None,
        scratch=scratch,
    )
    return _Block(shares, means, attention, gates.sigmoid_(), torch.empty_like(query))


def _gated(
    x: Tensor,
    index: tuple[int, slice],
    mask: Tensor,
    penalty: Tensor | None,
    query_weight: Tensor,
    weight: Tensor,
    offset: Tensor,
    scratch: Scratch,
) -> Tensor:
    """What a block's attention finds, gated. Its projections end with this call, before there are the next."""
    normed, _ = normalised(x[index])
    block = _block(normed, normed.to(weight.dtype), index, mask, penalty, query_weight, weight, offset, scratch)
    block.attention.gather(block.gathered)
    return block.gates.mul_(block.gathered.flatten(2))
