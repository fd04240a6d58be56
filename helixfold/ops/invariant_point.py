"""The heart of invariant point attention: logits of three kinds, and what their weights gather."""

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.cpu.invariant_point import invariant_point_attention_rows
from helixfold.ops.dispatch import Backend, Op
from helixfold.ops.layer_norm import layer_norm
from helixfold.ops.linear import Affine, linear

# Added to the logits of padding residues (DeepMind's program; not the 1e9 of the Evoformer).
MASKED = 1e5

Gathered = tuple[Float[Tensor, "b h i d"], Float[Tensor, "b h i p 3"], Float[Tensor, "b h i c_z"]]


def invariant_point_attention(
    query: Float[Tensor, "b h i d"],
    key: Float[Tensor, "b h j d"],
    value: Float[Tensor, "b h j d"],
    query_points: Float[Tensor, "b h i q 3"],
    key_points: Float[Tensor, "b h j q 3"],
    value_points: Float[Tensor, "b h j p 3"],
    point_weight: Float[Tensor, " h"],
    pair: Float[Tensor, "b i j c_z"],
    norm: Affine,
    pair_bias: Affine,
    mask: Float[Tensor, "b i"],
    key_mask: Float[Tensor, "b j"],
) -> Gathered:
    """Values, points in global coordinates and normalised pair channels, averaged with every head's weights.

    AlphaFold 2, Suppl. Alg. 22 lines 7 to 10. `query` comes with its factor of the logits, `point_weight` is what half
    a squared distance is multiplied by, and `pair_bias` what maps the normalised pair to its part of the logits. The
    pair is normalised here, from whatever dtype it has, in that of `query`.
    """
    return INVARIANT_POINT_ATTENTION(
        query, key, value, query_points, key_points, value_points, point_weight, pair, norm, pair_bias, mask, key_mask
    )


def invariant_point_attention_reference(
    query: Float[Tensor, "b h i d"],
    key: Float[Tensor, "b h j d"],
    value: Float[Tensor, "b h j d"],
    query_points: Float[Tensor, "b h i q 3"],
    key_points: Float[Tensor, "b h j q 3"],
    value_points: Float[Tensor, "b h j p 3"],
    point_weight: Float[Tensor, " h"],
    pair: Float[Tensor, "b i j c_z"],
    norm: Affine,
    pair_bias: Affine,
    mask: Float[Tensor, "b i"],
    key_mask: Float[Tensor, "b j"],
) -> Gathered:
    """What `invariant_point_attention` means, in plain torch."""
    distances = _squared_distances(query_points, key_points)
    normed = layer_norm(pair.to(query.dtype), norm)
    logits = (
        einsum(query, key, "b h i d, b h j d -> b h i j")
        - 0.5 * rearrange(point_weight, "h -> h 1 1") * distances
        + rearrange(linear(normed, pair_bias), "b i j h -> b h i j")
        - MASKED * (1 - rearrange(mask, "b i -> b 1 i 1") * rearrange(key_mask, "b j -> b 1 1 j"))
    )
    weights = logits.softmax(-1)
    return (
        einsum(weights, value, "b h i j, b h j d -> b h i d"),
        einsum(weights, value_points, "b h i j, b h j p x -> b h i p x"),
        einsum(weights, normed, "b h i j, b i j c -> b h i c"),
    )


def _squared_distances(
    queries: Float[Tensor, "b h i q 3"], keys: Float[Tensor, "b h j q 3"]
) -> Float[Tensor, "b h i j"]:
    """Between points of the same number, added up."""
    difference = rearrange(queries, "b h i q x -> b h i 1 q x") - rearrange(keys, "b h j q x -> b h 1 j q x")
    return difference.square().sum((-1, -2))


def _by_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_points: Tensor,
    key_points: Tensor,
    value_points: Tensor,
    point_weight: Tensor,
    pair: Tensor,
    norm: Affine,
    pair_bias: Affine,
    mask: Tensor,
    key_mask: Tensor,
) -> Gathered:
    points = query_points, key_points, value_points
    edges = pair, norm, pair_bias
    return invariant_point_attention_rows(query, key, value, *points, point_weight, *edges, mask, key_mask, MASKED)


def _refusal_of_rows(query: Tensor, key: Tensor, *_: object, **__: object) -> str | None:
    if query.dtype != torch.float32:
        return f"{query.dtype} is left to the reference"
    return "there is nothing to compute" if query.numel() == 0 or key.numel() == 0 else None


INVARIANT_POINT_ATTENTION = Op(
    "invariant_point_attention",
    Backend(name="rows", devices=("cpu",), refusal=_refusal_of_rows, run=_by_rows),
    Backend(name="reference", run=invariant_point_attention_reference),
)
