"""The structure module, which predicts atoms from the single and pair representations."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from helixfold.config import StructureConfig
from helixfold.geometry import atoms
from helixfold.geometry.frames import BackboneFrames
from helixfold.geometry.rigid import Rigid
from helixfold.model.layers import LayerNorm, Linear
from helixfold.model.outputs import PredictedStructure
from helixfold.model.update import Executor, Stream
from helixfold.ops.invariant_point import invariant_point_attention
from helixfold.ops.linear import linear
from helixfold.ops.precision import to_float32
from helixfold.ops.weights import Affine, PointAttentionWeights

# Translations inside the module are in units of 10 Angstrom (AlphaFold 2, Suppl. Alg. 20).
UNIT = 10.0
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


class InvariantPointAttention(nn.Module):
    """Attention over residues by features, pair channels and distances of 3-D points (AlphaFold 2, Suppl. Alg. 22)."""

    def __init__(self, config: StructureConfig, c_z: int) -> None:
        super().__init__()
        c, h = config.c, config.heads
        self.heads, self.c_scalar = h, config.c_scalar
        self.query_point_count, self.value_point_count = config.query_points, config.value_points
        self.query = Linear(c, h * config.c_scalar)
        self.key_value = Linear(c, 2 * h * config.c_scalar)
        self.query_points = Linear(c, 3 * h * config.query_points)
        self.key_value_points = Linear(c, 3 * h * (config.query_points + config.value_points))
        self.pair_bias = Linear(c_z, h)
        # softplus(0.5413) = 1, so every head starts with weight one.
        self.point_weights = nn.Parameter(torch.full((h,), 0.541324854612918))
        self.out = Linear(h * (config.c_scalar + 4 * config.value_points + c_z), c, init="zeros")

    def maps(self, pair_norm: Affine) -> PointAttentionMaps:
        """Return the parameters for attention with a pair stream that this layer norm normalises."""
        # These factors give each of the logits' three terms the same variance at the start (Suppl. Alg. 22 line 7).
        scalar_weight, pair_weight = (3 * self.c_scalar) ** -0.5, 3**-0.5
        point_weight = nn.functional.softplus(self.point_weights) * (3 * self.query_point_count * 4.5) ** -0.5
        pair_bias = Affine(pair_weight * self.pair_bias.weight, pair_weight * self.pair_bias.bias)

        def joined(of: Callable[[Linear], Tensor]) -> Tensor:
            points = torch.cat(
                [of(each).unflatten(0, (3, -1)) for each in (self.query_points, self.key_value_points)], 1
            )
            return torch.cat([scalar_weight * of(self.query), of(self.key_value), points.flatten(0, 1)])

        project = Affine(joined(lambda each: each.weight), joined(lambda each: each.bias))
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
            lengths = torch.linalg.vector_norm(nn.functional.pad(local, (0, 0, 0, 1), value=LENGTH_FLOOR**0.5), dim=-2)
            features = [
                rearrange(means, "b h i d -> b i (h d)"),
                local.flatten(-2),
                lengths,
                rearrange(pairs, "b h i c -> b i (h c)"),
            ]
            return self.out(torch.cat(features, -1))

        return run.gather(
            run.map_rows(attend, pair_input.pair, query, query_points, frames.rotation, frames.translation, mask)
        )


class StructureTransition(nn.Module):
    """Three linear maps with ReLUs on every residue (AlphaFold 2, Suppl. Alg. 20 line 8)."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.linear_1 = Linear(c, c, init="relu")
        self.linear_2 = Linear(c, c, init="relu")
        self.linear_3 = Linear(c, c, init="zeros")

    def forward(self, single: Float[Tensor, "b r c"]) -> Float[Tensor, "b r c"]:
        return single + self.linear_3(self.linear_2(self.linear_1(single).relu()).relu())


class AngleBlock(nn.Module):
    """A residual block of the torsion predictor (AlphaFold 2, Suppl. Alg. 20 lines 12 and 13)."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.linear_1 = Linear(c, c, init="relu")
        self.linear_2 = Linear(c, c, init="zeros")

    def forward(self, x: Float[Tensor, "b r c"]) -> Float[Tensor, "b r c"]:
        return x + self.linear_2(self.linear_1(x.relu()).relu())


class Angles(nn.Module):
    """Prediction of seven torsions per residue, as unit vectors and before normalisation.

    AlphaFold 2, Suppl. Alg. 20 lines 11 to 14.
    """

    def __init__(self, config: StructureConfig, c_s: int) -> None:
        super().__init__()
        self.current = Linear(config.c, config.c_angles)
        self.initial = Linear(c_s, config.c_angles)
        self.blocks = nn.ModuleList(AngleBlock(config.c_angles) for _ in range(config.angle_blocks))
        self.out = Linear(config.c_angles, 14)

    def forward(
        self, single: Float[Tensor, "b r c"], initial: Float[Tensor, "b r c_s"]
    ) -> tuple[Float[Tensor, "b r 7 2"], Float[Tensor, "b r 7 2"]]:
        x = self.current(single.relu()) + self.initial(initial.relu())
        for block in self.blocks:
            x = block(x)
        raw = self.out(x.relu()).unflatten(-1, (7, 2))
        length = raw.square().sum(-1, keepdim=True).clamp(min=1e-12).sqrt()
        return raw / length, raw


class StructureModule(nn.Module):
    """Iterations with one set of weights that refine frames and torsions, in float32 (AlphaFold 2, Suppl. Alg. 20)."""

    def __init__(self, config: StructureConfig, c_s: int, c_z: int) -> None:
        super().__init__()
        self.layers = config.layers
        self.norm_single = LayerNorm(c_s)
        self.norm_pair = LayerNorm(c_z)
        self.initial = Linear(c_s, config.c)
        self.attention = InvariantPointAttention(config, c_z)
        self.norm_attention = LayerNorm(config.c)
        self.transition = StructureTransition(config.c)
        self.norm_transition = LayerNorm(config.c)
        self.backbone_update = Linear(config.c, 6, init="zeros")
        self.angles = Angles(config, c_s)
        self.dropout_rate = config.dropout

    def forward(
        self,
        run: Executor,
        single: Float[Tensor, "b r c_s"],
        pair: Float[Stream, "b r r c_z"],
        aatype: Int[Tensor, "b r"],
        mask: Float[Tensor, "b r"],
    ) -> PredictedStructure:
        initial = self.norm_single(to_float32(single))
        state = self.initial(initial)
        frames = BackboneFrames.identity(state)
        pair_input = PairInput(pair, self.attention.maps(self.norm_pair.affine))
        states, steps = [], []
        for dropout_masks in self._dropout_masks(state):
            state, frames = self.iteration(run, state, frames, pair_input, mask, dropout_masks=dropout_masks)
            states.append(state)
            steps.append(frames)
            frames = frames.without_rotation_gradient()

        # No iteration reads torsions or atoms of the one before, so those of all iterations are computed at once.
        backbone = BackboneFrames(
            quaternion=torch.cat([step.quaternion for step in steps]),
            rotation=torch.cat([step.rotation for step in steps]),
            translation=UNIT * torch.cat([step.translation for step in steps]),
        )
        types = repeat(aatype, "b r -> (l b) r", l=self.layers)
        torsions, raw = self.angles(torch.cat(states), repeat(initial, "b r c -> (l b) r c", l=self.layers))
        groups = atoms.rigid_groups_from_torsions(types, backbone.rigid(), torsions)
        matrices = torch.cat([groups.rotation, groups.translation[..., None]], -1)
        flat = (backbone.to_tensor(), matrices, atoms.atom14_from_rigid_groups(types, groups), torsions, raw)
        trajectory, rigid_groups, atom14, torsions, raw = (x.unflatten(0, (self.layers, -1)) for x in flat)
        mask37 = atoms.atom37_mask(aatype, mask)
        return PredictedStructure(
            single=state,
            frames=trajectory,
            rigid_groups=rigid_groups,
            atom14=atom14,
            torsions=torsions,
            unnormalized_torsions=raw,
            atom14_mask=atoms.atom14_mask(aatype, mask),
            positions=atoms.atom14_to_atom37(atom14[-1], aatype, mask37),
            mask=mask37,
        )

    def iteration(
        self,
        run: Executor,
        state: Float[Tensor, "b r c"],
        frames: BackboneFrames,
        pair_input: PairInput,
        mask: Float[Tensor, "b r"],
        *,
        dropout_masks: Float[Tensor, "2 b r c"] | None = None,
    ) -> tuple[Float[Tensor, "b r c"], BackboneFrames]:
        """Return the single representation and the frames after one iteration (Suppl. Alg. 20 lines 6 to 10)."""
        state = state + self.attention(run, state, pair_input, mask, frames.rigid())
        state = self.norm_attention(state if dropout_masks is None else state * dropout_masks[0])
        state = self.transition(state)
        state = self.norm_transition(state if dropout_masks is None else state * dropout_masks[1])
        return state, frames.updated(self.backbone_update(state))

    def _dropout_masks(self, state: Float[Tensor, "b r c"]) -> Sequence[Float[Tensor, "2 b r c"] | None]:
        """Draw the factors of both dropouts of every iteration; None if nothing is dropped.

        They are drawn at once, and outside of `iteration`, so that running that again draws nothing.
        """
        if not self.training or self.dropout_rate == 0:
            return [None] * self.layers
        kept = 1 - self.dropout_rate
        return state.new_empty(self.layers, 2, *state.shape).bernoulli_(kept).div_(kept).unbind()
