"""Invariant point attention of the structure module."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.model.config import StructureConfig
from helixfold.model.geometry.rigid import Rigid
from helixfold.model.layers import Linear
from helixfold.model.update import Executor, Stream
from helixfold.ops.shared_parameters import LinearUse, copies, linear_once, linear_uses
from helixfold.ops.structure.point_attention import point_attention
from helixfold.ops.weights import Affine, PointAttentionSizes, PointAttentionWeights

# Added to the squared lengths of attended points before the root (DeepMind's program).
LENGTH_FLOOR = 1e-8


class PointAttentionMaps(NamedTuple):
    """Parameters of invariant point attention for one iteration of the structure module.

    `project` maps the features of a residue to its scaled query, its key and value, and its points: all x of query
    points and of key and value points, then all y, then all z. `out` maps the attended values of a residue to its
    update.
    """

    project: LinearUse
    weights: PointAttentionWeights
    out: LinearUse


class PairInput(NamedTuple):
    """A pair stream of any dtype before its layer norm, and the attention's parameters."""

    pair: Float[Stream, "b r r c_z"]
    maps: PointAttentionMaps


class Projections(NamedTuple):
    """Weights (or biases) of a residue's projections, in the row order in which the attention reads them."""

    query: Float[Tensor, "h_d *c"]  # one head after another
    key_value: Float[Tensor, "h_2_d *c"]  # for each head the key, then the value
    query_points: Float[Tensor, "3_h_q *c"]  # all x, then all y, then all z
    key_value_points: Float[Tensor, "3_h_p *c"]  # likewise; for each head the points of keys, then of values


class PointAttention(nn.Module):
    """Attention over residues by features, pair channels and distances of 3D points (AlphaFold 2, Suppl. Alg. 22).

    The subclasses of AlphaFold 2 and AlphaFold-Multimer have the parameters, including `pair_bias`, `point_weights` and
    `out`, and `length_floors`, the last two fields of `PointAttentionSizes`.
    """

    length_floors: tuple[float, float]
    pair_bias: Linear
    point_weights: nn.Parameter
    out: Linear

    def __init__(self, config: StructureConfig) -> None:
        super().__init__()
        self.sizes = PointAttentionSizes(
            config.heads, config.c_scalar, config.query_points, config.value_points, *self.length_floors
        )

    def projections(self, of: Callable[[Linear], Tensor]) -> Projections:
        """Return the weights or biases of the projections; `of` returns the weight or bias of a linear map."""
        raise NotImplementedError

    def maps(self, pair_norm: Affine, residues: int, uses: int = 1) -> list[PointAttentionMaps]:
        """Return the parameters for each of `uses` calls; `pair_norm` is the layer norm of the pair stream.

        `residues` counts the residues of all samples with padding.
        """
        # With these factors the three terms of the logits have the same initial variance (Suppl. Alg. 22 line 7).
        scalar_weight, pair_weight = (3 * self.sizes.scalars) ** -0.5, 3**-0.5
        point_weight = nn.functional.softplus(self.point_weights) * (3 * self.sizes.query_points * 4.5) ** -0.5
        pair_bias = Affine(pair_weight * self.pair_bias.weight, pair_weight * self.pair_bias.bias)

        def joined(of: Callable[[Linear], Tensor]) -> Tensor:
            """Return the weights or biases of all projections in one array, in the order that attention reads."""
            query, key_value, *points = self.projections(of)
            by_axis = torch.cat([each.unflatten(0, (3, -1)) for each in points], 1)
            return torch.cat([scalar_weight * query, key_value, by_axis.flatten(0, 1)])

        project = linear_uses(Affine(joined(lambda each: each.weight), joined(_bias)), uses, residues)
        point_weights = [each.weight for each in copies(Affine(point_weight), uses)]
        weights = map(PointAttentionWeights, point_weights, copies(pair_norm, uses), copies(pair_bias, uses))
        return [*map(PointAttentionMaps, project, weights, linear_uses(self.out.affine, uses, residues))]

    def forward(
        self,
        run: Executor,
        single: Float[Tensor, "b r c"],
        pair_input: PairInput,
        mask: Float[Tensor, "b r"],
        frames: Rigid,
    ) -> Float[Tensor, "b r c"]:
        """Return the change of the single representation from the attention of each residue to all residues."""
        maps = pair_input.maps
        projected = linear_once(single, maps.project)

        def gathered(rows: slice, pair: Float[Tensor, "b i r c_z"]) -> Float[Tensor, "b i f"]:
            return point_attention(
                projected, frames.rotation, frames.translation, mask, pair, maps.weights, self.sizes, rows.start
            )

        return self.out(run.gather(run.map_rows(gathered, pair_input.pair)), maps.out)


class InvariantPointAttention(PointAttention):
    """AlphaFold 2's invariant point attention (Suppl. Alg. 22)."""

    length_floors = (LENGTH_FLOOR, 0.0)

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


def initial_point_weights(heads: int) -> nn.Parameter:
    """Return the initial parameter of each head's weight of squared distances; softplus(0.5413) = 1 is the weight."""
    return nn.Parameter(torch.full((heads,), 0.541324854612918))


def _bias(linear: Linear) -> Tensor:
    """Return the bias of a linear map, or zeros if it has none."""
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
