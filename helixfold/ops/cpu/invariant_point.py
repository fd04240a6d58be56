"""Invariant point attention on a CPU in blocks of query rows, without storing point differences of all pairs."""

from collections.abc import Iterator

import torch
from einops import rearrange
from torch import Tensor

from helixfold.ops.constants import EPS, MASKED_POINT
from helixfold.ops.cpu.blocks import slices, steps
from helixfold.ops.cpu.fused_norm import block_rows, fused
from helixfold.ops.recomputed import recomputed
from helixfold.ops.weights import PointAttentionWeights

# Logits of a block of query rows: few enough to stay in the cache with everything computed from them.
_BLOCK_ELEMENTS = 2**18


def invariant_point_attention_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_points: Tensor,
    key_points: Tensor,
    value_points: Tensor,
    pair: Tensor,
    mask: Tensor,
    key_mask: Tensor,
    weights: PointAttentionWeights,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `invariant_point_attention` on a CPU; `pair` is the only tensor of all pairs saved for the gradients.

    Point distances are computed in float64.
    """
    point_weight, norm, pair_bias = weights
    bias_weight, bias_offset = fused(norm, pair_bias)
    # -|q - k|^2 / 2 = q.k - |q|^2 / 2 - |k|^2 / 2, so one matrix product of concatenated terms gives the point logits.
    # Far from the origin, the squares are much larger than the distances of near points, so this is in float64.
    weight = rearrange(point_weight.double(), "h -> h 1 1")
    queries, keys = query_points.double().flatten(-2), key_points.double().flatten(-2)
    ones = keys.new_ones(*key.shape[:-1], 1)
    float64_query = torch.cat(
        [
            weight * queries,
            rearrange(bias_offset, "h -> h 1 1") - 0.5 * weight * queries.square().sum(-1, keepdim=True),
            (-0.5 * weight).expand(*query.shape[:-1], 1),
            -rearrange(mask, "b i -> b 1 i 1").expand(*query.shape[:-1], 1),
        ],
        -1,
    )
    float64_key = torch.cat(
        [
            keys,
            ones,
            keys.square().sum(-1, keepdim=True),
            rearrange(MASKED_POINT * (1 - key_mask), "b j -> b 1 j 1").expand_as(ones),
        ],
        -1,
    )
    values = torch.cat([value, value_points.flatten(-2)], -1)
    attended, normed = recomputed(
        _attend,
        _attend_gradients,
        query,
        key,
        float64_query,
        float64_key,
        values,
        pair,
        bias_weight,
        MASKED_POINT * (1 - mask),
    )
    # The weights sum to one, so the scale and offset of the norm can be applied to the mean of the channels.
    pairs = normed * norm.weight if norm.bias is None else torch.addcmul(norm.bias, normed, norm.weight)
    scalars, points = attended.split([value.shape[-1], attended.shape[-1] - value.shape[-1]], -1)
    return scalars, points.unflatten(-1, (-1, 3)), pairs


def _attend(
    query: Tensor,
    key: Tensor,
    float64_query: Tensor,
    float64_key: Tensor,
    values: Tensor,
    pair: Tensor,
    weight: Tensor,
    shift: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the means of values [b h j d] and of normalised pair channels, weighted by the softmax of the logits.

    The logits are the float32 and float64 products of queries and keys, plus a linear map of the normalised channels by
    `weight` [h c_z], minus `shift` [b i].
    """
    attended = values.new_empty(*query.shape[:3], values.shape[-1])
    # All heads of a residue are contiguous in memory, because they are read together afterwards.
    normed = values.new_empty(*pair.shape[:2], *weight.shape)
    for index in steps(range(len(pair))):
        for rows, weights in _logits(query[index], key[index], float64_query[index], float64_key[index]):
            for part, inside in _parts(rows, pair.shape[2]):
                channels, scale = _centred(pair[index, part])
                bias = torch.bmm(weight.expand(len(channels), -1, -1), channels.mT).mul_(scale)
                _softmax(weights[inside], bias, shift[index, part])
                torch.bmm(scale * weights[inside], channels, out=normed[index, part])
            torch.bmm(weights.transpose(0, 1), values[index], out=attended[index, :, rows])
    return attended, normed.transpose(1, 2)


def _attend_gradients(
    needed: tuple[bool, ...],
    grad_attended: Tensor,
    grad_normed: Tensor,
    query: Tensor,
    key: Tensor,
    float64_query: Tensor,
    float64_key: Tensor,
    values: Tensor,
    pair: Tensor,
    weight: Tensor,
    shift: Tensor,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the arguments of `_attend`, given the gradients of its two results."""
    grad_query, grad_float64_query = torch.empty_like(query), torch.empty_like(float64_query)
    grad_values, grad_weight = torch.zeros_like(values), torch.zeros_like(weight)
    # Residues come last, which makes the products fast.
    grad_key, grad_float64_key = (torch.zeros_like(x.mT.contiguous()) for x in (key, float64_key))
    grad_pair = torch.empty_like(pair) if needed[5] else None
    for index in steps(range(len(pair))):
        for rows, weights in _logits(query[index], key[index], float64_query[index], float64_key[index]):
            grad_rows, grad_logits = grad_attended[index, :, rows], torch.empty_like(weights)
            by_heads = grad_logits.transpose(0, 1)
            torch.bmm(grad_rows, values[index].mT, out=by_heads)
            # Centring the maps changes no product with centred channels, but centres the gradient of the pair.
            maps = torch.cat([weight.expand(len(weights), -1, -1), grad_normed[index, :, rows].transpose(0, 1)], 1)
            maps -= maps.mean(-1, keepdim=True)
            for part, inside in _parts(rows, pair.shape[2]):
                grad_pair_rows = None if grad_pair is None else grad_pair[index, part]
                grad_weight += _gradients(
                    pair[index, part],
                    shift[index, part],
                    maps[inside],
                    weights[inside],
                    grad_logits[inside],
                    grad_pair_rows,
                )
            grad_values[index].baddbmm_(rearrange(weights, "i h j -> h j i"), grad_rows)
            torch.bmm(by_heads, key[index], out=grad_query[index, :, rows])
            grad_key[index].baddbmm_(query[index, :, rows].mT, by_heads)
            # Terms that are equal for all keys, such as the square of a query, are multiplied by the sum of the
            # gradients of a query. That sum is zero except for float32 rounding, which is removed here.
            exact = by_heads.double()
            exact -= weights.transpose(0, 1) * exact.sum(-1, keepdim=True)
            torch.bmm(exact, float64_key[index], out=grad_float64_query[index, :, rows])
            grad_float64_key[index].baddbmm_(float64_query[index, :, rows].mT, exact)
    return grad_query, grad_key.mT, grad_float64_query, grad_float64_key.mT, grad_values, grad_pair, grad_weight, None


def _logits(query: Tensor, key: Tensor, float64_query: Tensor, float64_key: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of rows and their float32 logits [i h j] without bias and shift; all blocks share one buffer."""
    (h, i, _), j = query.shape, key.shape[1]
    size = max(1, _BLOCK_ELEMENTS // (h * j))
    float32_memory, float64_memory = query.new_empty(min(size, i), h, j), float64_query.new_empty(h, min(size, i), j)
    for rows in slices(i, size):
        logits, products = float32_memory[: rows.stop - rows.start], float64_memory[:, : rows.stop - rows.start]
        logits.transpose(0, 1).copy_(torch.bmm(float64_query[:, rows], float64_key.mT, out=products))
        logits.transpose(0, 1).baddbmm_(query[:, rows], key.mT)
        yield rows, logits


def _softmax(logits: Tensor, bias: Tensor, shift: Tensor) -> None:
    """Add bias and shift to the logits [i h j] and overwrite them with their softmax over keys."""
    # The shift is equal for all keys, so it changes only the rounding. Subtracted last, it reproduces the rounding of
    # the reference at padding residues.
    torch.softmax(logits.add_(bias).sub_(rearrange(shift, "i -> i 1 1")), -1, out=logits)


def _parts(rows: slice, columns: int) -> Iterator[tuple[slice, slice]]:
    """Yield smaller slices of rows for the pair channels, and the same slices relative to the first row."""
    for inside in block_rows(rows.stop - rows.start, columns):
        yield slice(rows.start + inside.start, rows.start + inside.stop), inside


def _centred(pair: Tensor) -> tuple[Tensor, Tensor]:
    """Return the channels [i j c] minus their means in float32, and the reciprocal standard deviations [i 1 j].

    Callers scale tensors with a heads dimension, which are much smaller than tensors with a channels dimension.
    """
    values = pair.float()
    channels = torch.sub(values, values.mean(-1, keepdim=True), out=values.new_empty(values.shape))
    scale = torch.linalg.vector_norm(channels, dim=-1).square_().div_(pair.shape[-1]).add_(EPS).rsqrt_()
    return channels, rearrange(scale, "i j -> i 1 j")


def _gradients(
    pair: Tensor, shift: Tensor, maps: Tensor, weights: Tensor, grad_weights: Tensor, grad_pair: Tensor | None
) -> Tensor:
    """Return the gradient of the map to the bias [h c] for some rows of the pair, and write `grad_pair` for these rows.

    `maps` [i 2h c] are the map to the bias, then the gradient of the mean channels. On entry, `weights` [i h j] are the
    logits and `grad_weights` are the part from the values. They are overwritten with the weights and with the gradient
    of the logits.
    """
    channels, scale = _centred(pair)
    h = weights.shape[1]
    products = torch.bmm(maps, channels.mT).mul_(scale)
    _softmax(weights, products[:, :h], shift)
    grad_weights += products[:, h:]
    torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype, grad_input=grad_weights)
    factors = torch.cat([grad_weights, weights], 1).mul_(scale)
    if grad_pair is not None:
        is_float32 = grad_pair.dtype == torch.float32
        grad = grad_pair if is_float32 else torch.empty(grad_pair.shape, device=grad_pair.device)
        torch.bmm(factors.mT, maps, out=grad)
        # The gradient through a norm is orthogonal to the normalised channels.
        along = products.mul_(factors).sum(1).mul_(scale[:, 0])
        grad.addcmul_(channels, along[..., None], value=-1 / channels.shape[-1])
        if not is_float32:
            grad_pair.copy_(grad)
    return torch.bmm(factors[:, :h], channels).sum(0)
