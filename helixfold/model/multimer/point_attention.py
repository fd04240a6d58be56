"""AlphaFold-Multimer's invariant point attention, whose parameters are divided in another way."""

from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor

from helixfold.config import StructureConfig
from helixfold.model.layers import Linear
from helixfold.model.point_attention import PointAttention, Projections, initial_point_weights

# Angstrom times the structure module's unit: no point's distance counts as less (DeepMind's program).
LEAST_LENGTH = 1e-8


class MultimerPointAttention(PointAttention):
    """Invariant point attention with a map of its own for each of query, key, value and their points.

    AlphaFold 2, Suppl. Alg. 22, as in DeepMind's program for AlphaFold-Multimer: queries, keys and values have no bias,
    and the outputs of a map to points are ordered by head, axis, point.
    """

    length_floors = (0.0, LEAST_LENGTH)

    def __init__(self, config: StructureConfig, c_z: int) -> None:
        super().__init__(config)
        c, h = config.c, config.heads
        self.query, self.key, self.value = (Linear(c, h * config.c_scalar, bias=False) for _ in range(3))
        self.query_points, self.key_points = (Linear(c, 3 * h * config.query_points) for _ in range(2))
        self.value_points = Linear(c, 3 * h * config.value_points)
        self.pair_bias = Linear(c_z, h)
        self.point_weights = initial_point_weights(h)
        self.out = Linear(h * (config.c_scalar + 4 * config.value_points + c_z), c, init="zeros")

    def projections(self, of: Callable[[Linear], Tensor]) -> Projections:
        def points(linear: Linear) -> Tensor:
            return rearrange(of(linear), "(h x p) ... -> x h p ...", h=self.sizes.heads, x=3)

        key_value = [of(linear).unflatten(0, (self.sizes.heads, -1)) for linear in (self.key, self.value)]
        key_value_points = torch.cat([points(self.key_points), points(self.value_points)], 2)
        return Projections(
            query=of(self.query),
            key_value=torch.stack(key_value, 1).flatten(0, 2),
            query_points=points(self.query_points).flatten(0, 2),
            key_value_points=key_value_points.flatten(0, 2),
        )
