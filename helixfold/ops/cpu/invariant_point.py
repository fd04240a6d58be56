"""Invariant point attention in blocks of query rows, without the differences between points of all pairs."""

from collections.abc import Iterator
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

# Logits of a block of query rows: with what is made of them they stay in the processor's cache.
_BLOCK_ELEMENTS = 2**17


def invariant_point_attention_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_points: Tensor,
    key_points: Tensor,
    value_points: Tensor,
    point_weight: Tensor,
    bias: Tensor,
    pair: Tensor,
    mask: Tensor,
    key_mask: Tensor,
    masked: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`invariant_point_attention` on a CPU, with `masked` subtracted from the logits of padding.

    A training pass keeps nothing of all pairs but `bias` and `pair`.
    """
    # -|q - k|^2 / 2 = q.k - |q|^2 / 2 - |k|^2 / 2: with all terms side by side one product gives the logits. Squares of
    # positions far from the origin are much larger than those of near points' distances, so it is taken in float64.
    weight = rearrange(point_weight.double(), "h -> h 1 1")
    from_points, to_points = query_points.double().flatten(-2), key_points.double().flatten(-2)
    ones = key.new_ones(*key.shape[:-1], 1)
    padding = rearrange(masked * (1 - key_mask), "b j -> b 1 j 1").expand_as(ones)
    queries = torch.cat(
        [
            query,
            weight * from_points,
            -0.5 * weight * from_points.square().sum(-1, keepdim=True),
            (-0.5 * weight).expand(*query.shape[:-1], 1),
            -rearrange(mask, "b i -> b 1 i 1").expand(*query.shape[:-1], 1),
        ],
        -1,
    )
    keys = torch.cat([key, to_points, ones, to_points.square().sum(-1, keepdim=True), padding], -1)
    values = torch.cat([value, value_points.flatten(-2)], -1)
    gathered, pairs = _Gather.apply(queries, keys, values, bias, pair, masked * (1 - mask))
    return gathered[..., : value.shape[-1]], gathered[..., value.shape[-1] :].unflatten(-1, (-1, 3)), pairs


class _Gather(torch.autograd.Function):
    """Values [b h j d] and the pair's channels with weights softmax(queries keys' + bias - shift), shift [b i]."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, pair: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(queries, keys, values, bias, pair, shift)
        gathered = values.new_empty(*queries.shape[:3], values.shape[-1])
        # In memory as they are read afterwards, all heads of a residue together.
        pairs = pair.new_empty(*bias.shape[:1], bias.shape[2], bias.shape[1], pair.shape[-1])
        for index in range(len(pair)):
            for rows, weights in _weights(queries[index], keys[index], bias[index], shift[index]):
                torch.bmm(weights, values[index], out=gathered[index, :, rows])
                torch.bmm(weights.transpose(0, 1), pair[index, rows], out=pairs[index, rows])
        return gathered, pairs.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, of_gathered: Tensor, of_pairs: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, bias, pair, shift = ctx.saved_tensors
        needs_pair = ctx.needs_input_grad[4]
        of_queries, of_bias = torch.empty_like(queries), torch.empty_like(bias)
        of_keys, of_values = torch.zeros_like(keys), torch.zeros_like(values)
        of_pair = torch.empty_like(pair) if needs_pair else None
        for index in range(len(pair)):
            for rows, weights in _weights(queries[index], keys[index], bias[index], shift[index]):
                given, given_pairs = of_gathered[index, :, rows], of_pairs[index, :, rows].transpose(0, 1)
                if of_pair is not None:
                    torch.bmm(rearrange(weights, "h i j -> i j h"), given_pairs, out=of_pair[index, rows])
                of_values[index].baddbmm_(weights.mT, given)
                of_weights = given @ values[index].mT
                of_weights.transpose(0, 1).baddbmm_(given_pairs, pair[index, rows].mT)
                of_logits = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
                of_bias[index, :, rows] = of_logits
                # Whatever is the same for all keys, such as a query's square, is multiplied by each query's sum, which
                # is zero but for float32's last bits.
                of_logits = of_logits.double()
                of_logits -= weights * of_logits.sum(-1, keepdim=True)
                torch.bmm(of_logits, keys[index], out=of_queries[index, :, rows])
                of_keys[index].baddbmm_(of_logits.mT, queries[index, :, rows])
        return of_queries, of_keys, of_values, of_bias, of_pair, None


def _weights(queries: Tensor, keys: Tensor, bias: Tensor, shift: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The weights [h i j] of one sample, for one block of query rows after the other and in the same memory."""
    (h, i, _), j = queries.shape, keys.shape[1]
    size = max(1, _BLOCK_ELEMENTS // (h * j))
    room, wide = bias.new_empty(h, min(size, i), j), queries.new_empty(h, min(size, i), j)
    for start in range(0, i, size):
        rows = slice(start, min(start + size, i))
        count = rows.stop - start
        logits = torch.bmm(queries[:, rows], keys.mT, out=wide[:, :count])
        weights = room[:, :count].copy_(logits).add_(bias[:, rows])
        # The same for all keys, it changes nothing but a padding residue's last digits, to what they are elsewhere.
        weights -= shift[rows, None]
        yield rows, torch.softmax(weights, -1, out=weights)
