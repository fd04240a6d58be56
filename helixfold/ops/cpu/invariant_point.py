"""Invariant point attention in blocks of query rows, without differences of points or a normalised pair of them all."""

from collections.abc import Iterator

import torch
from einops import rearrange
from torch import Tensor

from helixfold.ops.constants import EPS, MASKED_POINT
from helixfold.ops.cpu.blocks import parts, steps
from helixfold.ops.cpu.folded_norm import block_rows, folded
from helixfold.ops.recomputed import recomputed
from helixfold.ops.weights import PointAttentionWeights

# Logits of a block of query rows: with what is made of them they stay in the processor's cache.
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
    """`invariant_point_attention` on a CPU; a training pass keeps nothing of all pairs but `pair`."""
    point_weight, norm, pair_bias = weights
    bias_weight, bias_offset = folded(norm, pair_bias)
    # -|q - k|^2 / 2 = q.k - |q|^2 / 2 - |k|^2 / 2: with all terms side by side one product gives the logits. Squares of
    # positions far from the origin are much larger than those of near points' distances, so it is taken in float64.
    weight = rearrange(point_weight.double(), "h -> h 1 1")
    from_points, to_points = query_points.double().flatten(-2), key_points.double().flatten(-2)
    ones = to_points.new_ones(*key.shape[:-1], 1)
    far_query = torch.cat(
        [
            weight * from_points,
            rearrange(bias_offset, "h -> h 1 1") - 0.5 * weight * from_points.square().sum(-1, keepdim=True),
            (-0.5 * weight).expand(*query.shape[:-1], 1),
            -rearrange(mask, "b i -> b 1 i 1").expand(*query.shape[:-1], 1),
        ],
        -1,
    )
    far_key = torch.cat(
        [
            to_points,
            ones,
            to_points.square().sum(-1, keepdim=True),
            rearrange(MASKED_POINT * (1 - key_mask), "b j -> b 1 j 1").expand_as(ones),
        ],
        -1,
    )
    values = torch.cat([value, value_points.flatten(-2)], -1)
    gathered, normed = recomputed(
        _gather, _gather_gradients, query, key, far_query, far_key, values, pair, bias_weight, MASKED_POINT * (1 - mask)
    )
    # Weights sum to one, so the norm's scale and offset can wait until the channels have been gathered.
    pairs = normed * norm.weight if norm.bias is None else torch.addcmul(norm.bias, normed, norm.weight)
    scalars, points = gathered.split([value.shape[-1], gathered.shape[-1] - value.shape[-1]], -1)
    return scalars, points.unflatten(-1, (-1, 3)), pairs


def _gather(
    query: Tensor,
    key: Tensor,
    far_query: Tensor,
    far_key: Tensor,
    values: Tensor,
    pair: Tensor,
    weight: Tensor,
    shift: Tensor,
) -> tuple[Tensor, Tensor]:
    """Values [b h j d] and the pair's normalised channels, with weights softmax(near + far + bias - shift).

    `near` are the products of queries and keys in float32 and `far` those in float64. The bias is what `weight` [h c_z]
    makes of the normalised channels, the shift is [b i].
    """
    gathered = values.new_empty(*query.shape[:3], values.shape[-1])
    # In memory as they are read afterwards, all heads of a residue together.
    normed = values.new_empty(*pair.shape[:2], *weight.shape)
    for index in steps(range(len(pair))):
        for rows, weights in _logits(query[index], key[index], far_query[index], far_key[index]):
            for part, inside in _parts(rows, pair.shape[2]):
                channels, scale = _centred(pair[index, part])
                bias = torch.bmm(weight.expand(len(channels), -1, -1), channels.mT).mul_(scale)
                _softmax(weights[inside], bias, shift[index, part])
                torch.bmm(scale * weights[inside], channels, out=normed[index, part])
            torch.bmm(weights.transpose(0, 1), values[index], out=gathered[index, :, rows])
    return gathered, normed.transpose(1, 2)


def _gather_gradients(
    needed: tuple[bool, ...],
    of_gathered: Tensor,
    of_normed: Tensor,
    query: Tensor,
    key: Tensor,
    far_query: Tensor,
    far_key: Tensor,
    values: Tensor,
    pair: Tensor,
    weight: Tensor,
    shift: Tensor,
) -> tuple[Tensor | None, ...]:
    of_query, of_far_query = torch.empty_like(query), torch.empty_like(far_query)
    of_values, of_weight = torch.zeros_like(values), torch.zeros_like(weight)
    # With residues last, as the products are fast.
    of_key, of_far_key = (torch.zeros_like(each.mT.contiguous()) for each in (key, far_key))
    of_pair = torch.empty_like(pair) if needed[5] else None
    for index in steps(range(len(pair))):
        for rows, weights in _logits(query[index], key[index], far_query[index], far_key[index]):
            given, of_logits = of_gathered[index, :, rows], torch.empty_like(weights)
            by_heads = of_logits.transpose(0, 1)
            torch.bmm(given, values[index].mT, out=by_heads)
            # Channels are mapped to the bias and gathered, neither of which depends on their mean.
            maps = torch.cat([weight.expand(len(weights), -1, -1), of_normed[index, :, rows].transpose(0, 1)], 1)
            maps -= maps.mean(-1, keepdim=True)
            for part, inside in _parts(rows, pair.shape[2]):
                of_rows = None if of_pair is None else of_pair[index, part]
                of_weight += _gradients(
                    pair[index, part], shift[index, part], maps[inside], weights[inside], of_logits[inside], of_rows
                )
            of_values[index].baddbmm_(rearrange(weights, "i h j -> h j i"), given)
            torch.bmm(by_heads, key[index], out=of_query[index, :, rows])
            of_key[index].baddbmm_(query[index, :, rows].mT, by_heads)
            # Whatever is the same for all keys, such as a query's square, is multiplied by each query's sum, which
            # is zero but for float32's last bits.
            exact = by_heads.double()
            exact -= weights.transpose(0, 1) * exact.sum(-1, keepdim=True)
            torch.bmm(exact, far_key[index], out=of_far_query[index, :, rows])
            of_far_key[index].baddbmm_(far_query[index, :, rows].mT, exact)
    return of_query, of_key.mT, of_far_query, of_far_key.mT, of_values, of_pair, of_weight, None


def _logits(query: Tensor, key: Tensor, far_query: Tensor, far_key: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Logits but for bias and shift, in float32 [i h j], of one block of rows after the other in the same memory."""
    (h, i, _), j = query.shape, key.shape[1]
    size = max(1, _BLOCK_ELEMENTS // (h * j))
    room, wide = query.new_empty(min(size, i), h, j), far_query.new_empty(h, min(size, i), j)
    for rows in parts(i, size):
        logits, far = room[: rows.stop - rows.start], wide[:, : rows.stop - rows.start]
        logits.transpose(0, 1).copy_(torch.bmm(far_query[:, rows], far_key.mT, out=far))
        logits.transpose(0, 1).baddbmm_(query[:, rows], key.mT)
        yield rows, logits


def _softmax(logits: Tensor, bias: Tensor, shift: Tensor) -> None:
    """Write the weights [i h j] where the logits without bias and shift are."""
    # The shift is the same for all keys. It comes last and changes nothing but a padding residue's last digits, to what
    # they are elsewhere.
    torch.softmax(logits.add_(bias).sub_(rearrange(shift, "i -> i 1 1")), -1, out=logits)


def _parts(rows: slice, columns: int) -> Iterator[tuple[slice, slice]]:
    """Smaller blocks of these rows for the pair's channels, and where in the block each of them is."""
    for inside in block_rows(rows.stop - rows.start, columns):
        yield slice(rows.start + inside.start, rows.start + inside.stop), inside


def _centred(pair: Tensor) -> tuple[Tensor, Tensor]:
    """Channels [i j c] less their means in float32, and one by their deviations [i 1 j].

    What has heads instead of channels is multiplied by these: it is much smaller.
    """
    wide = pair.float()
    channels = torch.sub(wide, wide.mean(-1, keepdim=True), out=wide.new_empty(wide.shape))
    scale = torch.linalg.vector_norm(channels, dim=-1).square_().div_(pair.shape[-1]).add_(EPS).rsqrt_()
    return channels, rearrange(scale, "i j -> i 1 j")


def _gradients(
    pair: Tensor, shift: Tensor, maps: Tensor, weights: Tensor, of_weights: Tensor, of_pair: Tensor | None
) -> Tensor:
    """The gradient of the bias's map [h c] from a few rows of the pair, and theirs written to `of_pair`.

    Channels are multiplied with `maps` [i 2h c]: that to the bias, then the gradient of what was gathered. Logits
    become weights [i h j], and what the values give to the weights' gradient that of the logits.
    """
    channels, scale = _centred(pair)
    h = weights.shape[1]
    products = torch.bmm(maps, channels.mT).mul_(scale)
    _softmax(weights, products[:, :h], shift)
    of_weights += products[:, h:]
    torch._softmax_backward_data(of_weights, weights, -1, weights.dtype, grad_input=of_weights)
    factors = torch.cat([of_weights, weights], 1).mul_(scale)
    if of_pair is not None:
        found = of_pair if of_pair.dtype == torch.float32 else torch.empty(of_pair.shape, device=of_pair.device)
        torch.bmm(factors.mT, maps, out=found)
        # The gradient through a norm has no part along the normalised channels.
        along = products.mul_(factors).sum(1).mul_(scale[:, 0])
        found.addcmul_(channels, along[..., None], value=-1 / channels.shape[-1])
        if found is not of_pair:
            of_pair.copy_(found)
    return torch.bmm(factors[:, :h], channels).sum(0)
