"""Invariant point attention without its projections: logits of scalars, points and pair, and weighted means."""

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.card import Card
from helixfold.ops.constants import MASKED_POINT
from helixfold.ops.dispatch import Backend, first_reason, operator
from helixfold.ops.layer_norm import layer_norm
from helixfold.ops.linear import linear
from helixfold.ops.weights import PointAttentionWeights


def _refusal_of_rows(card: Card, query: Tensor, key: Tensor, *_: object, **__: object) -> str | None:
    return first_reason(
        (query.dtype != torch.float32, f"{query.dtype} is left to the reference"),
        (query.numel() == 0 or key.numel() == 0, "there is nothing to compute"),
    )


@operator(
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.invariant_point:invariant_point_attention_rows",
        refusal=_refusal_of_rows,
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
    """Return every head's weighted means of values, of points in global coordinates and of normalised pair channels.

    AlphaFold 2, Suppl. Alg. 22 lines 7 to 10. `query` is already scaled. `pair` may have any dtype and is normalised in
    the dtype of `query`.
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
    """Return the sum over points of the squared distances between queries' and keys' points."""
    difference = rearrange(queries, "b h i q x -> b h i 1 q x") - rearrange(keys, "b h j q x -> b h 1 j q x")
    return difference.square().sum((-1, -2))
