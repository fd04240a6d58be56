"""The heart of invariant point attention: logits of three kinds, and what their weights gather."""

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.cpu.invariant_point import invariant_point_attention_rows
from helixfold.ops.dispatch import Backend, Op

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
    bias: Float[Tensor, "b h i j"],
    pair: Float[Tensor, "b i j c_z"],
    mask: Float[Tensor, "b i"],
    key_mask: Float[Tensor, "b j"],
) -> Gathered:
    """Values, points in global coordinates and pair channels, each averaged with every head's weights.

    AlphaFold 2, Suppl. Alg. 22 lines 7 to 10. `query` and `bias` come with their factors of the logits,
    `point_weight` is what half a squared distance is multiplied by.
    """
    return INVARIANT_POINT_ATTENTION(
        query, key, value, query_points, key_points, value_points, point_weight, bias, pair, mask, key_mask
    )


def invariant_point_attention_reference(
    query: Float[Tensor, "b h i d"],
    key: Float[Tensor, "b h j d"],
    value: Float[Tensor, "b h j d"],
    query_points: Float[Tensor, "b h i q 3"],
    key_points: Float[Tensor, "b h j q 3"],
    value_points: Float[Tensor, "b h j p 3"],
    point_weight: Float[Tensor, " h"],
    bias: Float[Tensor, "b h i j"],
    pair: Float[Tensor, "b i j c_z"],
    mask: Float[Tensor, "b i"],
    key_mask: Float[Tensor, "b j"],
) -> Gathered:
    """What `invariant_point_attention` means, in plain torch."""
    difference = rearrange(query_points, "b h i p x -> b h i 1 p x") - rearrange(key_points, "b h j p x -> b h 1 j p x")
    logits = (
        einsum(query, key, "b h i d, b h j d -> b h i j")
        - 0.5 * rearrange(point_weight, "h -> h 1 1") * difference.square().sum((-1, -2))
        + bias
        - MASKED * (1 - rearrange(mask, "b i -> b 1 i 1") * rearrange(key_mask, "b j -> b 1 1 j"))
    )
    weights = logits.softmax(-1)
    return (
        einsum(weights, value, "b h i j, b h j d -> b h i d"),
        einsum(weights, value_points, "b h i j, b h j p x -> b h i p x"),
        einsum(weights, pair, "b h i j, b i j c -> b h i c"),
    )


def _by_rows(
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
) -> Gathered:
    points = query_points, key_points, value_points
    return invariant_point_attention_rows(query, key, value, *points, point_weight, bias, pair, mask, key_mask, MASKED)


def _refusal_of_rows(query: Tensor, key: Tensor, *_: object, **__: object) -> str | None:
    if query.dtype != torch.float32:
        return f"{query.dtype} is left to the reference"
    return "there is nothing to compute" if query.numel() == 0 or key.numel() == 0 else None


INVARIANT_POINT_ATTENTION = Op(
    "invariant_point_attention",
    Backend(name="rows", devices=("cpu",), refusal=_refusal_of_rows, run=_by_rows),
    Backend(name="reference", run=invariant_point_attention_reference),
)
