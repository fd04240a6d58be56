"""Self-attention in blocks of rows that stay in the cache all the way from the stream to its change."""

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from helixfold.ops.cpu.attention import Rows, bias_of_rows
from helixfold.ops.cpu.blocks import Scratch, rows_of_samples
from helixfold.ops.cpu.folded_norm import MapGradient, folded, norm_gradient, normalised
from helixfold.ops.cpu.products import mapped, product
from helixfold.ops.mask_bias import mask_bias
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import recomputed
from helixfold.ops.weights import Affine, SelfAttentionWeights

# Of a block's projections, for each core: products are large enough to be fast.
_BLOCK_BYTES = 4 * 2**20


def self_attention_rows(
    x: Tensor, mask: Tensor, bias: Tensor | None, weights: SelfAttentionWeights, heads: int
) -> Tensor:
    """`self_attention` on a CPU; a training pass keeps its arguments only."""
    norm, qkv, gate, out = weights
    width = len(gate.weight)
    # The logits are scaled by the queries' map.
    factors = torch.ones(len(qkv.weight), device=x.device)
    factors[:width] = (width // heads) ** -0.5
    scaled = Affine(factors[:, None] * qkv.weight, None if qkv.bias is None else factors * qkv.bias)
    offset = factors.new_zeros(len(out.weight)) if out.bias is None else out.bias.float()
    return recomputed(
        _self_attention,
        _self_attention_gradients,
        x,
        mask_bias(mask),
        bias,
        *folded(norm, scaled, gate),
        out.weight.float(),
        offset,
        heads=heads,
    )


def _self_attention(x: Tensor, penalty: Tensor | None, bias: Tensor | None, *parameters: Tensor, heads: int) -> Tensor:
    weight, offset, out_weight, out_offset = (each.to(product_dtype(x.dtype)) for each in parameters)
    change, wide = torch.empty_like(x), bias_of_rows(bias)
    scratch = Scratch(x.device)
    for index in rows_of_samples(x, weight, _BLOCK_BYTES):
        gated = _gated(x, index, penalty, wide, weight, offset, heads, scratch)
        change[index] = mapped(gated, out_weight, out_offset).view(change[index].shape)
    return change


def _self_attention_gradients(
    needed: tuple[bool, ...],
    gradient: Tensor,
    x: Tensor,
    penalty: Tensor | None,
    bias: Tensor | None,
    *parameters: Tensor,
    heads: int,
) -> tuple[Tensor | None, ...]:
    weight, offset, out_weight, _ = (each.to(product_dtype(x.dtype)) for each in parameters)
    of_x = torch.empty_like(x)
    of_bias = None if bias is None or not needed[2] else torch.zeros(bias.shape, device=x.device)
    of_maps, of_out = MapGradient(weight), MapGradient(out_weight)
    scratch, wide = Scratch(x.device), bias_of_rows(bias)
    for index in rows_of_samples(x, weight, _BLOCK_BYTES):
        normed, scale = normalised(x[index])
        inputs = normed.to(weight.dtype)
        block = _block(inputs, index, penalty, wide, weight, offset, heads, scratch)
        of_change = gradient[index].reshape(-1, len(out_weight)).to(weight.dtype)
        of_gated = product(of_change, out_weight)
        of_projected = scratch("of projected", len(of_gated), len(weight), dtype=weight.dtype)
        of_query, of_key, of_value, of_gates = of_projected.chunk(4, 1)
        block.attention.gather_again(
            block.by_head(of_gated * block.gates),
            block.by_head(block.gathered),
            (block.by_head(of_query), block.by_head(of_key), block.by_head(of_value)),
            None if of_bias is None else of_bias[index[0]],
        )
        of_out.add(of_change.mT, block.gathered * block.gates)
        of_gates.copy_(torch.ops.aten.sigmoid_backward(of_gated.mul_(block.gathered), block.gates))
        of_maps.add(of_projected.mT, inputs)
        norm_gradient(product(of_projected, weight).float(), normed, scale, of_x[index])
    of_bias = None if bias is None or of_bias is None else of_bias.to(bias.dtype)
    return of_x, None, of_bias, of_maps.weight, of_maps.bias, of_out.weight, of_out.bias


class _Block(NamedTuple):
    """Some rows of a sample, their elements [m ...] all in one dim."""

    attention: Rows
    gates: Tensor
    gathered: Tensor  # room for what the attention finds

    def by_head(self, channels: Tensor) -> Tensor:
        n, h = self.attention.query.shape[:2]
        return rearrange(channels, "(n k) (h d) -> n h k d", n=n, h=h)


def _block(
    inputs: Tensor,
    index: tuple[int, slice],
    penalty: Tensor | None,
    bias: Tensor | None,
    weight: Tensor,
    offset: Tensor,
    heads: int,
    scratch: Scratch,
) -> _Block:
    """A block up to its projections, from normalised elements [m c]; the next one overwrites what it finds."""
    sample, rows = index
    n, width = rows.stop - rows.start, len(weight) // 4
    projected = mapped(inputs, weight, offset)
    heads_of = rearrange(projected[:, : 3 * width], "(n k) (t h d) -> t n h k d", n=n, t=3, h=heads)
    attention = Rows(
        query=heads_of[0],
        key=heads_of[1],
        value=heads_of[2],
        penalty=None if penalty is None else penalty[index],
        bias=None if bias is None else bias[sample],
        scratch=scratch,
    )
    gathered = scratch("gathered", len(inputs), width, dtype=inputs.dtype)
    return _Block(attention, projected[:, 3 * width :].sigmoid_(), gathered)


def _gated(
    x: Tensor,
    index: tuple[int, slice],
    penalty: Tensor | None,
    bias: Tensor | None,
    weight: Tensor,
    offset: Tensor,
    heads: int,
    scratch: Scratch,
) -> Tensor:
    """What a block's attention finds, gated. Its projections end with this call, before there are the next."""
    inputs = normalised(x[index])[0].to(weight.dtype)
    block = _block(inputs, index, penalty, bias, weight, offset, heads, scratch)
    block.attention.gather(block.by_head(block.gathered))
    return block.gathered.mul_(block.gates)
