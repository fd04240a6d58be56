"""Invariant point attention between its input and output maps."""

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from helixfold.ops.constants import MASKED_POINT
from helixfold.ops.device_properties import DeviceProperties
from helixfold.ops.dispatch import Backend, first_reason, operator
from helixfold.ops.linear import layer_norm, linear
from helixfold.ops.triton.requirements import missing_requirement
from helixfold.ops.weights import PointAttentionSizes, PointAttentionWeights


def _unsupported_by_rows(
    properties: DeviceProperties, query: Tensor, key: Tensor, *_: object, **__: object
) -> str | None:
    """Return why the CPU backend "rows" does not support these arguments, or None."""
    return first_reason(
        (query.dtype != torch.float32, f"{query.dtype} is left to the reference"),
        (query.numel() == 0 or key.numel() == 0, "there is nothing to compute"),
    )


@operator(
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.invariant_point:invariant_point_attention_rows",
        unsupported_reason=_unsupported_by_rows,
    ),
)
def invariant_point_attention(
    query: Float[Tensor, "b h i d"],
    key: Float[Tensor, "b h j d"],
    value: Float[Tensor, "b h j d"],
    query_points: Float[Tensor, "b h i q 3"],
    key_points: Float[Tensor, "b h j q 3"],
    value_points: Float[Tensor, "b h j p 3"],
    pair: Float[Tensor, "b i j c_z"],
    mask: Float[Tensor, "b i"],
    key_mask: Float[Tensor, "b j"],
    weights: PointAttentionWeights,
) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b h i p 3"], Float[Tensor, "b h i c_z"]]:
    """Return every head's weighted means of values, points in global coordinates and normalised pair channels.

    `mask` is 1 for real queries, `key_mask` for real keys. `query` is already scaled. `pair` may have any dtype and is
    normalised in the dtype of `query`. AlphaFold 2, Suppl. Alg. 22 lines 7 to 10.
    """
    normed = layer_norm(pair.to(query.dtype), weights.norm)
    logits = (
        einsum(query, key, "b h i d, b h j d -> b h i j")
        - 0.5 * rearrange(weights.point_weight, "h -> h 1 1") * _squared_distances(query_points, key_points)
        + rearrange(linear(normed, weights.pair_bias), "b i j h -> b h i j")
        - MASKED_POINT * (1 - rearrange(mask, "b i -> b 1 i 1") * rearrange(key_mask, "b j -> b 1 1 j"))
    )
    attention_weights = logits.softmax(-1)
    return (
        einsum(attention_weights, value, "b h i j, b h j d -> b h i d"),
        einsum(attention_weights, value_points, "b h i j, b h j p x -> b h i p x"),
        einsum(attention_weights, normed, "b h i j, b i j c -> b h i c"),
    )


def _squared_distances(
    queries: Float[Tensor, "b h i q 3"], keys: Float[Tensor, "b h j q 3"]
) -> Float[Tensor, "b h i j"]:
    """Return the squared distances between the points of queries and keys, summed over points."""
    difference = rearrange(queries, "b h i q x -> b h i 1 q x") - rearrange(keys, "b h j q x -> b h 1 j q x")
    return difference.square().sum((-1, -2))


def _unsupported_by_triton(
    properties: DeviceProperties,
    projected: Tensor,
    rotation: Tensor,
    translation: Tensor,
    mask: Tensor,
    pair: Tensor,
    weights: PointAttentionWeights,
    sizes: PointAttentionSizes,
    first: int = 0,
) -> str | None:
    """Return why the Triton kernels do not support these arguments on a device with these properties, or None."""
    return first_reason(
        (projected.dtype != torch.float32, f"{projected.dtype} is left to the reference"),
        (projected.numel() == 0 or pair.numel() == 0, "there is nothing to compute"),
        (
            pair.shape[-1] not in (32, 64, 128) or pair.stride(-1) != 1,
            "an edge must have 32, 64 or 128 channels",
        ),
        (
            max(sizes.heads, sizes.scalars, 3 * sizes.query_points) > 16 or sizes.value_points > 8,
            "it takes up to 16 heads and 16 channels, 5 query points and 8 value points of a head",
        ),
        (weights.norm.bias is None, "it takes a norm with an offset"),
    ) or missing_requirement(properties)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.structure.invariant_point:point_attention_triton",
        unsupported_reason=_unsupported_by_triton,
    ),
)
def point_attention(
    projected: Float[Tensor, "b r n"],
    rotation: Float[Tensor, "b r 3 3"],
    translation: Float[Tensor, "b r 3"],
    mask: Float[Tensor, "b r"],
    pair: Float[Tensor, "b i r c_z"],
    weights: PointAttentionWeights,
    sizes: PointAttentionSizes,
    first: int = 0,
) -> Float[Tensor, "b i f"]:
    """Return the attention features of query residues `first`, `first + 1`, ... from attention to all residues.

    The channels of `projected` are the scaled query of a residue, then for each head the key and the value, then all x
    coordinates of its points (queries before keys and values), then all y and all z. Points are in the local frame of
    the residue. The features are the mean values of all heads, their mean points in the local frame (all x, all y, all
    z), the lengths of these points, and the mean normalised pair channels. AlphaFold 2, Suppl. Alg. 22 lines 2 to 11.
    """
    h, d, q, p, added, min_length = sizes
    rows = slice(first, first + pair.shape[1])
    query, key_value, points = projected.split([h * d, 2 * h * d, 3 * h * (2 * q + p)], -1)
    key, value = rearrange(key_value, "b r (h two d) -> two b h r d", two=2, h=h)
    local = points.unflatten(-1, (3, -1)).flatten(0, 1)
    points = torch.baddbmm(translation.reshape(-1, 3, 1), rotation.flatten(0, 1), local).unflatten(0, mask.shape)
    query_points, key_value_points = points.split([h * q, h * (q + p)], -1)
    key_points, value_points = rearrange(key_value_points, "b r x (h p) -> b h r p x", h=h).split([q, p], -2)
    means, points, pairs = invariant_point_attention(
        rearrange(_rows(query, rows), "b i (h d) -> b h i d", h=h),
        key,
        value,
        rearrange(_rows(query_points, rows), "b i x (h q) -> b h i q x", h=h),
        key_points,
        value_points,
        pair,
        _rows(mask, rows),
        mask,
        weights,
    )
    apart = rearrange(points, "b h i p x -> b i x (h p)") - _rows(translation, rows)[..., None]
    local = _rows(rotation, rows).mT @ apart
    lengths = torch.linalg.vector_norm(pad(local, (0, 0, 0, 1), value=added**0.5) if added else local, dim=-2)
    features = [
        rearrange(means, "b h i d -> b i (h d)"),
        local.flatten(-2),
        lengths.clamp(min=min_length) if min_length else lengths,
        rearrange(pairs, "b h i c -> b i (h c)"),
    ]
    return torch.cat(features, -1)


def _rows(x: Float[Tensor, "b r *rest"], rows: slice) -> Float[Tensor, "b i *rest"]:
    """Return some residues of a tensor; for all residues, without an operation in the autograd graph."""
    return x if rows == slice(0, x.shape[1]) else x[:, rows]
