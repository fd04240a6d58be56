"""Invariant point attention, with which the structure module lets residues see each other in space."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.config import StructureConfig
from helixfold.geometry.rigid import Rigid
from helixfold.model.layers import Linear
from helixfold.model.update import Executor, Stream
from helixfold.ops.invariant_point import invariant_point_attention
from helixfold.ops.linear import linear
from helixfold.ops.weights import Affine, PointAttentionWeights

# Added to squared lengths of attended points before the root (DeepMind's program).
LENGTH_FLOOR = 1e-8


class PointAttentionMaps(NamedTuple):
    """Parameters of invariant point attention in the form that its iterations share.

    `project` maps a residue to its scaled query, to its key and value, and to all its points: all x of query points and
    of key and value points, then all y, then all z.
    """

    project: Affine
    weights: PointAttentionWeights


class PairInput(NamedTuple):
    """A pair stream of any dtype before its layer norm, and the parameters with which attention reads it."""

    pair: Float[Stream, "b r r c_z"]
    maps: PointAttentionMaps


class Projections(NamedTuple):
    """Weights (or biases) of a residue's projections, in the row order in which the attention reads them."""

    query: Float[Tensor, "h_d *c"]  # head by head
    key_value: Float[Tensor, "h_2_d *c"]  # of each head the key, then the value
    query_points: Float[Tensor, "3_h_q *c"]  # all x, then all y, then all z
    key_value_points: Float[Tensor, "3_h_p *c"]  # likewise; of each head the points of keys, then those of values


class PointAttention(nn.Module):
    """Attention over residues by features, pair channels and distances of 3-D points (AlphaFold 2, Suppl. Alg. 22).

    The subclasses are AlphaFold 2's and AlphaFold-Multimer's: they have the parameters, among them `pair_bias`,
    `point_weights` and `out`, and say how long a point's vector counts.
    """

    pair_bias: Linear
    point_weights: nn.Parameter
    out: Linear

    def __init__(self, config: StructureConfig) -> None:
        super().__init__()
        self.heads, self.c_scalar = config.heads, config.c_scalar
        self.query_point_count, self.value_point_count = config.query_points, config.value_points

    def projections(self, of: Callable[[Linear], Tensor]) -> Projections:
        """Return the weights or biases of the residues' projections; `of` returns those of a linear map."""
        raise NotImplementedError

    def lengths(self, points: Float[Tensor, "b i 3 h_p"]) -> Float[Tensor, "b i h_p"]:
        """Return the distances of points from their frame's origin."""
        raise NotImplementedError

    def maps(self, pair_norm: Affine) -> PointAttentionMaps:
        """Return the parameters for attention with a pair stream that this layer norm normalises."""
        # These factors give each of the logits' three terms the same variance at the start (Suppl. Alg. 22 line 7).
        scalar_weight, pair_weight = (3 * self.c_scalar) ** -0.5, 3**-0.5
        point_weight = nn.functional.softplus(self.point_weights) * (3 * self.query_point_count * 4.5) ** -0.5
        pair_bias = Affine(pair_weight * self.pair_bias.weight, pair_weight * self.pair_bias.bias)

        def joined(of: Callable[[Linear], Tensor]) -> Tensor:
            query, key_value, *points = self.projections(of)
            by_axis = torch.cat([each.unflatten(0, (3, -1)) for each in points], 1)
            return torch.cat([scalar_weight * query, key_value, by_axis.flatten(0, 1)])

        project = Affine(joined(lambda each: each.weight), joined(_bias))
        return PointAttentionMaps(project, PointAttentionWeights(point_weight, pair_norm, pair_bias))

    def forward(
        self,
        run: Executor,
        single: Float[Tensor, "b r c"],
        pair_input: PairInput,
        mask: Float[Tensor, "b r"],
        frames: Rigid,
    ) -> Float[Tensor, "b r c"]:
        """Return the change of the single representation."""
        maps, h, q = pair_input.maps, self.heads, self.query_point_count
        d, p = self.c_scalar, self.value_point_count
        # Parts are split rather than sliced, for then their gradients are joined in one operation.
        query, key_value, points = linear(single, maps.project).split([h * d, 2 * h * d, 3 * h * (2 * q + p)], -1)
        key, value = rearrange(key_value, "b r (h two d) -> two b h r d", two=2, h=h)
        points = frames.apply_to_columns(points.unflatten(-1, (3, -1)))
        query_points, key_value_points = points.split([h * q, h * (q + p)], -1)
        key_points, value_points = rearrange(key_value_points, "b r x (h p) -> b h r p x", h=h).split([q, p], -2)

        def attend(  # noqa: PLR0917  # one for each stream
            _: slice,
            pair: Float[Tensor, "b i r c_z"],
            query: Float[Tensor, "b i h_d"],
            query_points: Float[Tensor, "b i 3 h_q"],
            rotation: Float[Tensor, "b i 3 3"],
            translation: Float[Tensor, "b i 3"],
            rows_mask: Float[Tensor, "b i"],
        ) -> Float[Tensor, "b i c"]:
            means, points, pairs = invariant_point_attention(
                rearrange(query, "b i (h d) -> b h i d", h=h),
                key,
                value,
                rearrange(query_points, "b i x (h q) -> b h i q x", h=h),
                key_points,
                value_points,
                pair,
                rows_mask,
                mask,
                maps.weights,
            )
            rows_frames = Rigid(rotation=rotation, translation=translation)
            local = rows_frames.invert_apply_to_columns(rearrange(points, "b h i p x -> b i x (h p)"))
            features = [
                rearrange(means, "b h i d -> b i (h d)"),
                local.flatten(-2),
                self.lengths(local),
                rearrange(pairs, "b h i c -> b i (h c)"),
            ]
            return self.out(torch.cat(features, -1))

        return run.gather(
            run.map_rows(attend, pair_input.pair, query, query_points, frames.rotation, frames.translation, mask)
        )


class InvariantPointAttention(PointAttention):
    """AlphaFold 2's invariant point attention (Suppl. Alg. 22)."""

    def __init__(self, config: StructureConfig, c_z: int) -> None:
        super().__init__(config)
        c, h = config.c, config.heads
        self.query = Linear(c, h * config.c_scalar)
        self.key_value = Linear(c, 2 * h * config.c_scalar)
        self.query_points = Linear(c, 3 * h * config.query_points)
        self.key_value_points = Linear(c, 3 * h * (config.query_points + config.value_points))
        self.pair_bias = Linear(c_z, h)
        self.point_weights = initial_point_weights(h)
        self.out = Linear(h * (config.c_scalar + 4 * config.value_points + c_z), c, init="zeros")

    def projections(self, of: Callable[[Linear], Tensor]) -> Projections:
        return Projections(of(self.query), of(self.key_value), of(self.query_points), of(self.key_value_points))

    def lengths(self, points: Float[Tensor, "b i 3 h_p"]) -> Float[Tensor, "b i h_p"]:
        return torch.linalg.vector_norm(nn.functional.pad(points, (0, 0, 0, 1), value=LENGTH_FLOOR**0.5), dim=-2)


def initial_point_weights(heads: int) -> nn.Parameter:
    """Return the heads' weights of distances, all one after the softplus: softplus(0.5413) = 1."""
    return nn.Parameter(torch.full((heads,), 0.541324854612918))


def _bias(linear: Linear) -> Tensor:
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
