"""Invariant point attention as Triton kernels: all heads of one query residue in a program, no tensor of all points."""

from typing import Any, no_type_check

import torch
from einops import rearrange
from torch import Tensor
from torch.autograd.function import once_differentiable

from helixfold.ops.constants import EPS, MASKED_POINT
from helixfold.ops.triton.language import jit, kernel, tl
from helixfold.ops.triton.layer_norm import normalised
from helixfold.ops.triton.structure.invariant_point_backward import differentiate
from helixfold.ops.triton.structure.invariant_point_tiles import (
    BLOCK,
    means_at,
    of_keys,
    pair_at,
    points_at,
    read_points,
    read_scalars,
    read_weight,
    tiles,
    with_strides,
)
from helixfold.ops.triton.tiles import programs_at_once
from helixfold.ops.weights import PointAttentionWeights

_EPS, _MASKED = tl.constexpr(EPS), tl.constexpr(MASKED_POINT)
# Programs of the backward pass, each of which adds up its gradients of the parameters.
_PROGRAMS_OF_A_MULTIPROCESSOR = 2


@jit
@no_type_check
def _store(results, program, means, points, pairs, count, widths):
    """Store the three means of a query residue."""
    place, inside = means_at(program, means.shape[0], means.shape[1], count, widths[0])
    tl.store(results[0] + place, means, mask=inside)
    place, inside = points_at(program, points.shape[0], points.shape[1], count, widths[2])
    tl.store(results[1] + place, points, mask=inside)
    place, inside = means_at(program, pairs.shape[0], pairs.shape[1], count, pairs.shape[1])
    tl.store(results[2] + place, pairs, mask=inside)


@kernel
@no_type_check
def attend(
    query,
    key,
    value,
    query_points,
    key_points,
    value_points,
    pair,
    mask_at,
    key_mask_at,
    parameters,
    results,
    sizes,
    widths,
    heads: tl.constexpr,
    scalar_width: tl.constexpr,
    query_width: tl.constexpr,
    value_width: tl.constexpr,
    c: tl.constexpr,
    block: tl.constexpr,
):
    """Compute the means [b i h d], [b i 3 h p] and [b i h c] of one query residue; store its logits if asked for."""
    point_weight_at, scale_at, offset_at, weight_at = parameters
    logits_at, log_sum_at = results[3], results[4]
    rows, keys, count = sizes
    d, q, p = widths
    program = tl.program_id(0)
    sample, row = tl.cast(program // rows, tl.int64), tl.cast(program % rows, tl.int64)
    here = (row + tl.zeros([1], tl.int64), tl.full([1], 1, tl.int1))
    head, channel = tl.arange(0, heads), tl.arange(0, c)
    own = read_scalars(query, sample, here, heads, scalar_width, count, d)
    own_points = read_points(query_points, sample, here, heads, query_width, count, 3 * q)
    point_weight = tl.load(point_weight_at + head, mask=head < count, other=0.0)
    scale = tl.load(scale_at + channel)
    weight = tl.trans(read_weight(weight_at, scale, heads, c, count))
    mask = tl.load(mask_at + program)
    largest = tl.full([heads], -float("inf"), tl.float32)
    total = tl.zeros([heads], tl.float32)
    means = tl.zeros([heads, scalar_width], tl.float32)
    points = tl.zeros([heads, value_width], tl.float32)
    pairs = tl.zeros([heads, c], tl.float32)
    for first in range(0, keys, block):
        index = first + tl.arange(0, block)
        there = index < keys
        residue = (index.to(tl.int64), there)
        x = tl.load(pair_at(pair, sample, row, index, c), mask=there[:, None], other=0.0).to(tl.float32)
        normed, _ = normalised(x, channel, _EPS, c)
        logit = tl.dot(normed, weight, input_precision="ieee")
        logit += tl.sum(own * read_scalars(key, sample, residue, heads, scalar_width, count, d), 2)
        difference = own_points - read_points(key_points, sample, residue, heads, query_width, count, 3 * q)
        logit -= 0.5 * point_weight[None, :] * tl.sum(difference * difference, 2)
        key_mask = tl.load(key_mask_at + sample * keys + index, mask=there, other=0.0)
        # Where the query is masked, all keys would get the same large number, which would cut off the logits' digits.
        logit -= (mask * (1 - key_mask) * _MASKED)[:, None]
        if logits_at is not None:
            at, exists = of_keys(logits_at, sample, row, index, heads, sizes)
            tl.store(at, logit, mask=exists)
        logit = tl.where(there[:, None], logit, -float("inf"))
        before = largest
        largest = tl.maximum(before, tl.max(logit, 0))
        decay = tl.exp(before - largest)
        weights = tl.exp(logit - largest[None, :])
        total = total * decay + tl.sum(weights, 0)
        scalars = read_scalars(value, sample, residue, heads, scalar_width, count, d)
        means = means * decay[:, None] + tl.sum(weights[:, :, None] * scalars, 0)
        coordinates = read_points(value_points, sample, residue, heads, value_width, count, 3 * p)
        points = points * decay[:, None] + tl.sum(weights[:, :, None] * coordinates, 0)
        pairs = pairs * decay[:, None] + tl.dot(tl.trans(weights), normed, input_precision="ieee")
    offset = tl.load(offset_at + channel)
    pairs = pairs / total[:, None] * scale[None, :] + offset[None, :]
    _store(results, program, means / total[:, None], points / total[:, None], pairs, count, widths)
    if logits_at is not None:
        tl.store(log_sum_at + program * count + head, largest + tl.log(total), mask=head < count)


class _PointAttention(torch.autograd.Function):
    """The attention, which saves the logits; the backward pass computes what remains of keys by matrix products."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, _, value, query_points, _, value_points, pair, mask, key_mask, *parameters = tensors
        b, h, i, d = query.shape
        j, p = value.shape[2], value_points.shape[3]
        means, points, pairs = (
            query.new_empty(b, i, *shape) for shape in ((h, value.shape[3]), (3, h, p), (h, pair.shape[-1]))
        )
        logits, log_sum = None, None
        if any(ctx.needs_input_grad):
            logits, log_sum = query.new_empty(b, h, i, j), query.new_empty(b, i, h)
        attend[(b * i,)](
            *map(with_strides, tensors[:6]),
            with_strides(pair),
            mask.contiguous(),
            key_mask.contiguous(),
            tuple(parameters),
            (means, points, pairs, logits, log_sum),
            (i, j, h),
            (d, query_points.shape[3], p),
            **tiles(d, query_points.shape[3], p, h),
            c=pair.shape[-1],
        )
        ctx.save_for_backward(*tensors, logits, log_sum)
        return means.transpose(1, 2), rearrange(points, "b i x h p -> b h i p x"), pairs.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, logits, log_sum = ctx.saved_tensors
        query, key, value, query_points, key_points, value_points, pair, _, _, point_weight, scale, _, weight = tensors
        grad_means, grad_points, grad_pairs = gradients
        b, h, i, d = query.shape
        q, p, c = query_points.shape[3], value_points.shape[3], pair.shape[-1]
        # Near their common centre, points lose no digits when sums of their differences are split into two sums.
        centre = key_points.mean((1, 2, 3), keepdim=True)
        ones = torch.ones_like(query[..., :1])
        query_points, key_points = query_points - centre, key_points - centre
        of_values = torch.cat([grad_means, grad_points.flatten(-2)], -1)
        values = torch.cat([value, (value_points - centre).flatten(-2)], -1)
        weights, grad_logits = logits.clone(), of_values @ values.mT
        grad_pair = torch.empty_like(pair) if ctx.needs_input_grad[6] else None
        programs = min(b * i, _PROGRAMS_OF_A_MULTIPROCESSOR * programs_at_once(query.device))
        sums = query.new_empty(programs, h + 2, c)
        differentiate[(programs,)](
            with_strides(pair),
            (scale, weight),
            (weights, grad_logits),
            log_sum,
            grad_pairs.transpose(1, 2).contiguous(),
            with_strides(grad_pair),
            sums,
            (i, key.shape[2], h),
            b,
            heads=tiles(d, q, p, h)["heads"],
            c=c,
            block=BLOCK,
            num_warps=16,
        )
        grad_value = weights.mT @ of_values
        of_queries = grad_logits @ torch.cat([key, key_points.flatten(-2)], -1)
        of_keys = grad_logits.mT @ torch.cat([query, query_points.flatten(-2), ones], -1)
        # A query's gradients of logits sum to zero.
        along_queries = of_queries[..., d:].unflatten(-1, (q, 3))
        along_keys = of_keys[..., d:-1].unflatten(-1, (q, 3)).addcmul(of_keys[..., -1:, None], key_points, value=-1)
        grad_point_weight = grad_scale = grad_offset = grad_weight = None
        if ctx.needs_input_grad[9]:
            # The points' term is quadratic, so its sum is half the sum of its gradients' products with the points.
            quadratic = (query_points * along_queries).sum((0, 2, 3, 4)) + (key_points * along_keys).sum((0, 2, 3, 4))
            grad_point_weight = 0.5 * quadratic
        if any(ctx.needs_input_grad[10:]):
            grad_sums = sums.sum(0)
            grad_weight, grad_scale, grad_offset = grad_sums[:h], grad_sums[h], grad_sums[h + 1]
        factor = point_weight[:, None, None, None]
        return (
            of_queries[..., :d],
            of_keys[..., :d],
            grad_value[..., : value.shape[3]],
            along_queries * factor,
            along_keys * factor,
            grad_value[..., value.shape[3] :].unflatten(-1, (p, 3)),
            grad_pair,
            None,
            None,
            grad_point_weight,
            grad_scale,
            grad_offset,
            grad_weight,
        )


def invariant_point_attention_triton(
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
    """Compute `invariant_point_attention` on a CUDA device; with gradients, only logits are stored for all pairs.

    The offset of the map to the bias is equal for all keys, so the softmax does not depend on it.
    """
    point_weight, (scale, offset), (weight, _) = weights
    means: tuple[Tensor, Tensor, Tensor] = _PointAttention.apply(
        query,
        key,
        value,
        query_points,
        key_points,
        value_points,
        pair,
        mask,
        key_mask,
        point_weight,
        scale,
        offset,
        weight,
    )
    return means
