"""Invariant point attention as Triton kernels, with all heads of one query residue in a program."""

from typing import Any, no_type_check

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from helixfold.ops.constants import EPS, MASKED_POINT
from helixfold.ops.triton.language import jit, kernel, next_power_of_2, programs_at_once, tl
from helixfold.ops.triton.layer_norm import normalised
from helixfold.ops.triton.structure.invariant_point_backward import differentiate
from helixfold.ops.triton.structure.invariant_point_tiles import (
    BLOCK,
    means_at,
    of_keys,
    pair_at,
    read_channels,
    read_points,
    read_weight,
    with_strides,
)
from helixfold.ops.triton.structure.point_frames import frame, of_features, to_heads, to_projections
from helixfold.ops.triton.sums import summed
from helixfold.ops.weights import PointAttentionSizes, PointAttentionWeights

_EPS, _MASKED = tl.constexpr(EPS), tl.constexpr(MASKED_POINT)
# Programs of the backward pass, each of which sums its gradients of the parameters.
_PROGRAMS_OF_A_MULTIPROCESSOR = 2


@jit
@no_type_check
def _store(features_at, program, means_and_points, pairs, frames, residue, widths, floors, point_width: tl.constexpr):
    """Store the features of a query residue: mean values, mean local points, their lengths, mean channels."""
    means, points = means_and_points
    sample, index, residues, count = residue
    d, p = widths
    heads: tl.constexpr = means.shape[0]
    features_at += tl.cast(program, tl.int64) * count * (d + 4 * p + pairs.shape[1])
    place, inside = means_at(heads, means.shape[1], count, d)
    tl.store(features_at + place, means, mask=inside)
    features_at += count * d
    rows_0, rows_1, rows_2, origin = frame(frames[0], frames[1], sample, index, residues)
    axis = tl.arange(0, 4)
    points = tl.reshape(points, (heads, 4, point_width))
    shift = tl.where(axis == 0, origin[0], tl.where(axis == 1, origin[1], origin[2]))
    points = points - shift[None, :, None]
    place, inside = means_at(heads, point_width, count, p)
    squared = tl.zeros([heads, point_width], tl.float32)
    for column in tl.static_range(3):
        along = tl.where(
            axis == 0,
            rows_0[column],
            tl.where(axis == 1, rows_1[column], tl.where(axis == 2, rows_2[column], 0.0)),
        )
        local = tl.sum(points * along[None, :, None], 1)
        squared += local * local
        tl.store(features_at + place, local, mask=inside)
        features_at += count * p
    length = tl.maximum(tl.sqrt(squared + floors[0]), floors[1])
    tl.store(features_at + place, length, mask=inside)
    place, inside = means_at(heads, pairs.shape[1], count, pairs.shape[1])
    tl.store(features_at + count * p + place, pairs, mask=inside)


@kernel
@no_type_check
def attend(
    packed,
    pair,
    mask_at,
    frames,
    parameters,
    results,
    sizes,
    widths,
    floors,
    heads: tl.constexpr,
    scalar_width: tl.constexpr,
    query_width: tl.constexpr,
    point_width: tl.constexpr,
    c: tl.constexpr,
    block: tl.constexpr,
):
    """Compute the features of one query residue, and store its logits if they are needed for gradients."""
    point_weight_at, scale_at, offset_at, weight_at = parameters
    features_at, logits_at, log_sum_at = results
    rows, keys, count, first_row = sizes
    d, q, p, width = widths
    program = tl.program_id(0)
    sample, row = tl.cast(program // rows, tl.int64), tl.cast(program % rows, tl.int64)
    here = (first_row + row + tl.zeros([1], tl.int64), tl.full([1], 1, tl.int1))
    head, channel = tl.arange(0, heads), tl.arange(0, c)
    own = read_channels(packed[0], sample, here, keys, 0, heads, scalar_width, count, d, width)
    own_points = read_channels(packed[0], sample, here, keys, d, heads, query_width, count, 3 * q, width)
    point_weight = tl.load(point_weight_at + head, mask=head < count, other=0.0)
    scale = tl.load(scale_at + channel)
    weight = tl.trans(read_weight(weight_at, scale, heads, c, count))
    mask = tl.load(mask_at + sample * keys + first_row + row)
    largest = tl.full([heads], -float("inf"), tl.float32)
    total = tl.zeros([heads], tl.float32)
    means = tl.zeros([heads, scalar_width], tl.float32)
    points = tl.zeros([heads, 4 * point_width], tl.float32)
    pairs = tl.zeros([heads, c], tl.float32)
    for first in range(0, keys, block):
        index = first + tl.arange(0, block)
        there = index < keys
        residue = (index.to(tl.int64), there)
        x = tl.load(pair_at(pair, sample, row, index, c), mask=there[:, None], other=0.0).to(tl.float32)
        normed, _ = normalised(x, channel, _EPS, c)
        logit = tl.dot(normed, weight, input_precision="ieee")
        logit += tl.sum(
            own * read_channels(packed[1], sample, residue, keys, 0, heads, scalar_width, count, d, width), 2
        )
        difference = own_points - read_channels(
            packed[1], sample, residue, keys, d, heads, query_width, count, 3 * q, width
        )
        logit -= 0.5 * point_weight[None, :] * tl.sum(difference * difference, 2)
        key_mask = tl.load(mask_at + sample * keys + index, mask=there, other=0.0)
        # For a masked query, the bias is the same large number for all keys and would reduce the precision.
        logit -= (mask * (1 - key_mask) * _MASKED)[:, None]
        if logits_at is not None:
            at, exists = of_keys(logits_at, sample, row, index, heads, (rows, keys, count))
            tl.store(at, logit, mask=exists)
        logit = tl.where(there[:, None], logit, -float("inf"))
        greatest = tl.maximum(largest, tl.max(logit, 0))
        decay, weights = tl.exp(largest - greatest), tl.exp(logit - greatest[None, :])
        largest = greatest
        total = total * decay + tl.sum(weights, 0)
        scalars = read_channels(packed[2], sample, residue, keys, 0, heads, scalar_width, count, d, d + 3 * p)
        means = means * decay[:, None] + tl.sum(weights[:, :, None] * scalars, 0)
        coordinates = read_points(packed[2], sample, residue, keys, d, heads, point_width, count, p, d + 3 * p)
        points = points * decay[:, None] + tl.sum(weights[:, :, None] * coordinates, 0)
        pairs = pairs * decay[:, None] + tl.dot(tl.trans(weights), normed, input_precision="ieee")
    pairs = pairs / total[:, None] * scale[None, :] + tl.load(offset_at + channel)[None, :]
    means_and_points = (means / total[:, None], points / total[:, None])
    query_residue = (sample, first_row + row, keys, count)
    _store(features_at, program, means_and_points, pairs, frames, query_residue, (d, p), floors, point_width)
    if logits_at is not None:
        tl.store(log_sum_at + program * count + head, largest + tl.log(total), mask=head < count)


class _PointAttention(torch.autograd.Function):
    """Invariant point attention, which saves the logits; its backward pass sums over queries by matrix products."""

    @staticmethod
    def forward(  # autograd functions are called with positions
        ctx: Any,
        sizes: PointAttentionSizes,
        first: int,
        projected: Tensor,
        rotation: Tensor,
        translation: Tensor,
        mask: Tensor,
        pair: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        """Return the features of the query residues from `first`, and save logits if gradients are needed."""
        projected, rotation, translation, mask = (
            each.contiguous() for each in (projected, rotation, translation, mask)
        )
        frames = rotation, translation
        (b, r), (i, c) = translation.shape[:2], pair.shape[1::2]
        h, d, q, p = sizes[:4]
        width = -(-(d + 3 * q + 1) // 4) * 4
        packed = tuple(projected.new_empty(b, h, r, channels) for channels in (width, width, d + 3 * p))
        to_heads[(b * r,)](projected, frames, packed, (r, h), (d, q, p, width), **_tiles(sizes, "query"), num_warps=1)
        features = projected.new_empty(b, i, h * (d + 4 * p + c))
        logits, log_sum = None, None
        if any(ctx.needs_input_grad):
            logits, log_sum = projected.new_empty(b, h, i, r), projected.new_empty(b, i, h)
        attend[(b * i,)](
            packed,
            with_strides(pair),
            mask,
            frames,
            parameters,
            (features, logits, log_sum),
            (i, r, h, first),
            (d, q, p, width),
            sizes[4:],
            **_tiles(sizes, "attended query"),
            c=c,
            block=BLOCK,
            num_warps=8,
        )
        ctx.sizes, ctx.first = sizes, first
        ctx.save_for_backward(projected, *frames, pair, *parameters, *packed, features, logits, log_sum)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_features: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of projections, frames, pair and parameters from the saved logits."""
        projected, rotation, translation, pair, *saved = ctx.saved_tensors
        point_weight, scale, _, weight, query, key, value, features, logits, log_sum = saved
        frames, grad_features, first = (rotation, translation), grad_features.contiguous(), ctx.first
        (b, r), (i, c) = translation.shape[:2], pair.shape[1::2]
        h, d, q, p = ctx.sizes[:4]
        own = query[:, :, first : first + i]
        of_values, of_own_frames = value.new_empty(b, h, i, value.shape[-1]), value.new_empty(b, i, 12)
        of_features[(b * i,)](
            features,
            grad_features,
            frames,
            of_values,
            of_own_frames,
            (i, r, h, first),
            (d, p, c),
            ctx.sizes.min_length,
            **_tiles(ctx.sizes),
            num_warps=1,
        )
        weights, grad_logits = torch.empty_like(logits), of_values @ value.mT
        grad_pair = torch.empty_like(pair) if ctx.needs_input_grad[6] else None
        programs = min(b * i, _PROGRAMS_OF_A_MULTIPROCESSOR * programs_at_once(projected.device))
        sums = projected.new_empty(programs, h + 2, c)
        differentiate[(programs,)](
            with_strides(pair),
            (scale, weight),
            (logits, weights, grad_logits),
            log_sum,
            (grad_features[..., -h * c :], grad_features.shape[-1]),
            with_strides(grad_pair),
            sums,
            (i, r, h),
            b,
            heads=_tiles(ctx.sizes)["heads"],
            c=c,
            block=BLOCK,
            num_warps=16,
        )
        products = grad_logits @ key, grad_logits.mT @ own, weights.mT @ of_values, of_own_frames
        grad_projected, grad_frames = torch.empty_like(projected), projected.new_empty(b, r, 12)
        of_point_weights = projected.new_empty(b * r, h)
        to_projections[(b * r,)](
            projected,
            frames,
            (query, key),
            products,
            point_weight,
            grad_projected,
            grad_frames,
            of_point_weights,
            (i, r, h, first),
            (d, q, p, query.shape[-1]),
            **_tiles(ctx.sizes, "query"),
            num_warps=1,
        )
        grad_point_weight = grad_scale = grad_offset = grad_weight = None
        if ctx.needs_input_grad[7]:
            (grad_point_weight,) = summed(of_point_weights, point_weight)
        if any(ctx.needs_input_grad[8:]):
            grad_weight, grad_scale, grad_offset = summed(sums, weight, scale, scale)
        return (
            None,
            None,
            grad_projected,
            grad_frames[..., :9].unflatten(-1, (3, 3)),
            grad_frames[..., 9:],
            None,
            grad_pair,
            grad_point_weight,
            grad_scale,
            grad_offset,
            grad_weight,
        )


def _tiles(sizes: PointAttentionSizes, queries: str = "") -> dict[str, int]:
    """Return the widths of tiles, with `query_width`, in points or coordinates, if the tiles hold points of queries."""
    widths = {
        "heads": max(16, next_power_of_2(sizes.heads)),
        "scalar_width": next_power_of_2(sizes.scalars),
        "point_width": next_power_of_2(sizes.value_points),
    }
    if queries:
        coordinates = 3 if queries == "attended query" else 1
        widths["query_width"] = next_power_of_2(coordinates * sizes.query_points)
    return widths


def point_attention_triton(
    projected: Tensor,
    rotation: Tensor,
    translation: Tensor,
    mask: Tensor,
    pair: Tensor,
    weights: PointAttentionWeights,
    sizes: PointAttentionSizes,
    first: int = 0,
) -> Tensor:
    """Compute `point_attention` on a CUDA device; with gradients, only the logits of all pairs are stored.

    The offset of the map to the bias is equal for all keys, so the softmax does not depend on it.
    """
    point_weight, (scale, offset), (weight, _) = weights
    features: Tensor = _PointAttention.apply(
        sizes, first, projected, rotation, translation, mask, pair, point_weight, scale, offset, weight
    )
    return features
