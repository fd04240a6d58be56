"""The structure module, which predicts atoms from the single and pair representations."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from helixfold.model.config import StructureConfig
from helixfold.model.geometry import atoms
from helixfold.model.geometry.frames import BackboneFrames
from helixfold.model.layers import LayerNorm, Linear
from helixfold.model.outputs import PredictedStructure
from helixfold.model.point_attention import InvariantPointAttention, PairInput, PointAttention
from helixfold.model.template_frames import Start
from helixfold.model.update import Executor, Stream
from helixfold.ops.precision import to_float32
from helixfold.ops.residual import residual_norm
from helixfold.ops.shared_parameters import LinearUse, copies, linear_uses
from helixfold.ops.weights import Affine


class StructureTransition(nn.Module):
    """Three linear maps with ReLUs between them, applied to each residue (AlphaFold 2, Suppl. Alg. 20 line 8)."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.linear_1 = Linear(c, c, init="relu")
        self.linear_2 = Linear(c, c, init="relu")
        self.linear_3 = Linear(c, c, init="zeros")

    def forward(self, single: Float[Tensor, "b r c"], maps: Sequence[LinearUse]) -> Float[Tensor, "b r c"]:
        """Return the change of the single representation; `maps` has one use of each of the three linear maps."""
        first, second, third = maps
        hidden = self.linear_2(self.linear_1(single, first).relu(), second).relu()
        change: Tensor = self.linear_3(hidden, third)
        return change


class ResidualNorm(LayerNorm):
    """Layer norm of (single + change) times a dropout mask, if any (AlphaFold 2, Suppl. Alg. 20 lines 7 and 9)."""

    def forward(  # type: ignore[override]
        self,
        single: Float[Tensor, "b r c"],
        change: Float[Tensor, "b r c"],
        parameters: Affine,
        dropout_mask: Float[Tensor, "b r c"] | None,
    ) -> Float[Tensor, "b r c"]:
        return residual_norm(single, change, parameters, dropout_mask)


class AngleBlock(nn.Module):
    """A residual block of the torsion predictor (AlphaFold 2, Suppl. Alg. 20 lines 12 and 13)."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.linear_1 = Linear(c, c, init="relu")
        self.linear_2 = Linear(c, c, init="zeros")

    def forward(self, x: Float[Tensor, "*batch r c"]) -> Float[Tensor, "*batch r c"]:
        return x + self.linear_2(self.linear_1(x.relu()).relu())


class Angles(nn.Module):
    """Prediction of the sine and cosine of seven torsions per residue, as unit vectors and before normalisation.

    AlphaFold 2, Suppl. Alg. 20 lines 11 to 14.
    """

    def __init__(self, config: StructureConfig, c_s: int) -> None:
        super().__init__()
        self.current = Linear(config.c, config.c_angles)
        self.initial = Linear(c_s, config.c_angles)
        self.blocks = nn.ModuleList(AngleBlock(config.c_angles) for _ in range(config.angle_blocks))
        self.out = Linear(config.c_angles, 14)

    def forward(
        self, single: Float[Tensor, "*l b r c"], initial: Float[Tensor, "b r c_s"]
    ) -> tuple[Float[Tensor, "*l b r 7 2"], Float[Tensor, "*l b r 7 2"]]:
        """Return normalised and raw (sine, cosine), of one or several single representations with one initial one."""
        x = self.current(single.relu()) + self.initial(initial.relu())
        for block in self.blocks:
            x = block(x)
        raw = self.out(x.relu()).unflatten(-1, (7, 2))
        length = raw.square().sum(-1, keepdim=True).clamp(min=1e-12).sqrt()
        return raw / length, raw


class IterationParameters(NamedTuple):
    """Pair stream and parameters of one iteration of the structure module.

    All iterations have equal parameters. Each has its own copy, so that on a GPU their gradients are computed at once.
    """

    attention: PairInput
    norm_attention: Affine
    transition: tuple[LinearUse, LinearUse, LinearUse]
    norm_transition: Affine
    backbone_update: LinearUse


class StructureModule(nn.Module):
    """Iterations with shared weights that refine frames and torsions, in float32 (AlphaFold 2, Suppl. Alg. 20)."""

    def __init__(
        self,
        config: StructureConfig,
        c_s: int,
        c_z: int,
        *,
        attention: Callable[[StructureConfig, int], PointAttention] = InvariantPointAttention,
    ) -> None:
        super().__init__()
        self.layers, self.position_scale = config.layers, config.position_scale
        self.norm_single = LayerNorm(c_s)
        self.norm_pair = LayerNorm(c_z)
        self.initial = Linear(c_s, config.c)
        self.attention = attention(config, c_z)
        self.norm_attention = ResidualNorm(config.c)
        self.transition = StructureTransition(config.c)
        self.norm_transition = ResidualNorm(config.c)
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
        *,
        start: Start | None = None,
    ) -> PredictedStructure:
        """Predict the structure of each sample after each iteration, from `start` or from all residues at the origin.

        Translations are multiplied by `position_scale`, so that the result is in Angstrom.
        """
        initial = self.norm_single(to_float32(single))
        state = self.initial(initial)
        frames = BackboneFrames.identity(state) if start is None else start.frames
        factors = None if start is None else start.update_factors
        states, steps = [], []
        for parameters, dropout_masks in zip(
            self.parameters_of_iterations(pair, mask.numel()), self._dropout_masks(state), strict=True
        ):
            state, frames = self.iteration(
                run, state, frames, parameters, mask, dropout_masks=dropout_masks, update_factors=factors
            )
            states.append(state)
            steps.append(frames)
            frames = self.passed_on(frames)

        # Iterations do not read torsions or atoms of earlier ones, so these are computed for all iterations at once.
        backbone = BackboneFrames(
            quaternion=torch.cat([step.quaternion for step in steps]),
            rotation=torch.cat([step.rotation for step in steps]),
            translation=self.position_scale * torch.cat([step.translation for step in steps]),
        )
        types = repeat(aatype, "b r -> (l b) r", l=self.layers)
        torsions, raw = self.angles(torch.stack(states), initial)
        groups = atoms.rigid_group_matrices(types, backbone.rigid(), torsions.flatten(0, 1))
        flat = (backbone.to_tensor(), groups, atoms.atom14_from_matrices(types, groups))
        trajectory, rigid_groups, atom14 = (x.unflatten(0, (self.layers, -1)) for x in flat)
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
            from_template=mask.new_zeros(mask.shape) if start is None else start.present,
        )

    def iteration(
        self,
        run: Executor,
        state: Float[Tensor, "b r c"],
        frames: BackboneFrames,
        parameters: IterationParameters,
        mask: Float[Tensor, "b r"],
        *,
        dropout_masks: Float[Tensor, "2 b r c"] | None = None,
        update_factors: Float[Tensor, "b r 1"] | None = None,
    ) -> tuple[Float[Tensor, "b r c"], BackboneFrames]:
        """Run one iteration: return the single representation and the frames (Suppl. Alg. 20 lines 6 to 10).

        `dropout_masks` are for the sums after attention and transition; their elements are 0 or 1 / keep rate. Updates
        of frames are multiplied by `update_factors`.
        """
        attention, norm_attention, transition, norm_transition, backbone_update = parameters
        dropout = (None, None) if dropout_masks is None else dropout_masks.unbind()
        change = self.attention(run, state, attention, mask, frames.rigid())
        state = self.norm_attention(state, change, norm_attention, dropout[0])
        state = self.norm_transition(state, self.transition(state, transition), norm_transition, dropout[1])
        update = self.backbone_update(state, backbone_update)
        return state, frames.updated(update if update_factors is None else update * update_factors)

    def parameters_of_iterations(self, pair: Float[Stream, "b r r c_z"], residues: int) -> list[IterationParameters]:
        """Return the parameters for each iteration; `residues` counts the residues of all samples with padding."""

        def uses(module: Linear) -> list[LinearUse]:
            return linear_uses(module.affine, self.layers, residues)

        transition = self.transition
        return [
            IterationParameters(*each)
            for each in zip(
                [PairInput(pair, maps) for maps in self.attention.maps(self.norm_pair.affine, residues, self.layers)],
                copies(self.norm_attention.affine, self.layers),
                zip(*map(uses, (transition.linear_1, transition.linear_2, transition.linear_3)), strict=True),
                copies(self.norm_transition.affine, self.layers),
                uses(self.backbone_update),
                strict=True,
            )
        ]

    def passed_on(self, frames: BackboneFrames) -> BackboneFrames:
        """Return the input frames of the next iteration, without gradients of rotations (Suppl. Alg. 20 line 20)."""
        return frames.without_rotation_gradient()

    def _dropout_masks(self, state: Float[Tensor, "b r c"]) -> Sequence[Float[Tensor, "2 b r c"] | None]:
        """Sample the masks of both dropouts of each iteration; None without dropout.

        They are sampled outside of `iteration`, so that a checkpointed iteration uses the same masks when it runs
        again.
        """
        if not self.training or self.dropout_rate == 0:
            return [None] * self.layers
        keep_rate = 1 - self.dropout_rate
        return state.new_empty(self.layers, 2, *state.shape).bernoulli_(keep_rate).div_(keep_rate).unbind()
