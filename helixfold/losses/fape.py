"""Frame-aligned point error (FAPE): compares points in the local coordinates of all frames, without superposition."""

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from data_pipeline.residue_geometry import PSI_GROUP
from data_pipeline.residues import UNKNOWN
from helixfold.losses.ambiguity import RenamedTruth
from helixfold.model.geometry.rigid import Rigid, rigid_from_tensor
from helixfold.model.outputs import PredictedStructure
from helixfold.ops.structure.aligned_errors import ChainPairs, aligned_errors

UNIT = 10.0  # Angstrom that count as an error of 1 in FAPE, except between chains
# Added to counts (DeepMind's program). The floor of squared errors gives a perfect prediction an error of 0.01 Angstrom
# and a gradient.
_COUNT_FLOOR = 1e-4


@dataclass(frozen=True, kw_only=True)
class FramesAndPoints:
    """Frames (`*batch f`) and points of one structure, in Angstrom."""

    frames: Rigid
    points: Float[Tensor, "*batch p 3"]


def frame_aligned_point_error(
    predicted: FramesAndPoints,
    truth: FramesAndPoints,
    frames_mask: Float[Tensor, "*batch f"],
    points_mask: Float[Tensor, "*batch p"],
    clamp: Float[Tensor, "*batch"],
) -> Float[Tensor, "*batch"]:
    """Return the mean error of all points in all frames (AlphaFold 2, Suppl. Alg. 28), in units of 10 Angstrom.

    The mean is over unmasked pairs of a frame and a point. Errors above `clamp` (Angstrom, may be infinite) count as
    `clamp`.
    """
    total = _summed_errors(predicted, truth, (frames_mask, points_mask), clamp)
    return total / (UNIT * (_COUNT_FLOOR + frames_mask.sum(-1) * points_mask.sum(-1)))


def _summed_errors(
    predicted: FramesAndPoints,
    truth: FramesAndPoints,
    masks: tuple[Float[Tensor, "*batch f"], Float[Tensor, "*batch p"]],
    clamp: Float[Tensor, "*batch"],
    pairs: ChainPairs | None = None,
) -> Float[Tensor, "*batch"]:
    """Return the sum of clamped errors in Angstrom; `masks` are for frames and points, `pairs` has flat batch dims."""
    frames_mask, points_mask = masks
    # The difference of the local coordinates of a point, R^T (x - t) - R*^T (x* - t*), is linear in (x, x*, 1). One
    # matrix product of inverse frames [R^T, -R*^T, R*^T t* - R^T t] and homogeneous points computes it for all pairs.
    inverse, true_inverse = predicted.frames.rotation.mT, truth.frames.rotation.mT
    shift = true_inverse @ truth.frames.translation[..., None] - inverse @ predicted.frames.translation[..., None]
    inverse_frames = rearrange(torch.cat([inverse, -true_inverse, shift], -1), "... f x c -> ... x f c")
    points = torch.cat([predicted.points, truth.points, torch.ones_like(predicted.points[..., :1])], -1)
    total: Tensor = _SummedErrors.apply(
        inverse_frames.flatten(0, -4),
        points.flatten(0, -3),
        frames_mask.flatten(0, -2),
        points_mask.flatten(0, -2),
        clamp.flatten().to(points_mask.dtype),
        pairs,
    )
    return total.view(clamp.shape)


class _SummedErrors(torch.autograd.Function):
    """Sum of clamped errors over all unmasked pairs of frames and points.

    Autograd would save several tensors of all pairs, each 66 MB for 256 residues. This function computes the gradients
    in the forward pass, together with the sum.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  # autograd functions are called with positions
        ctx: Any,
        inverse_frames: Float[Tensor, "n 3 f 7"],
        points: Float[Tensor, "n p 7"],
        frames_mask: Float[Tensor, "n f"],
        points_mask: Float[Tensor, "n p"],
        clamp: Float[Tensor, " n"],
        pairs: ChainPairs | None,
    ) -> Float[Tensor, " n"]:
        """Return the sum of each sample, and save its gradients if any input needs one."""
        total, grad_frames, grad_points = aligned_errors(
            inverse_frames, points, frames_mask, points_mask, clamp, any(ctx.needs_input_grad), pairs
        )
        ctx.save_for_backward(grad_frames, grad_points)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, " n"]) -> tuple[Tensor | None, ...]:
        grad_frames, grad_points = ctx.saved_tensors
        return grad_frames * grad[:, None, None, None], grad_points * grad[:, None, None], None, None, None, None


def backbone_fape(
    trajectory: Float[Tensor, "l b r 7"], true_frames: Rigid, mask: Float[Tensor, "b r"], clamp: Float[Tensor, " b"]
) -> Float[Tensor, " b"]:
    """Return the FAPE of C-alphas in backbone frames, averaged over the iterations `l` of the structure module.

    `trajectory` has unit quaternions, then translations. The true frames are (b r), and `mask` is 1 where they are
    observed. AlphaFold 2, Suppl. Alg. 20 line 17.
    """
    predicted, truth = _backbones(trajectory, true_frames)
    mask, clamp = mask.expand(len(trajectory), *mask.shape), clamp.expand(len(trajectory), *clamp.shape)
    return frame_aligned_point_error(predicted, truth, mask, mask, clamp).mean(0)


def chain_backbone_fape(
    trajectory: Float[Tensor, "l b r 7"],
    true_frames: Rigid,
    mask: Float[Tensor, "b r"],
    clamp: Float[Tensor, " b"],
    asym_id: Int[Tensor, "b r"],
    *,
    within: bool,
    unit: float,
) -> Float[Tensor, " b"]:
    """Return the FAPE of C-alphas in the backbone frames of their own chain, or of the other chains if not `within`.

    Errors are in units of `unit` Angstrom and averaged over the pairs that count and over iterations. A complex without
    such pairs has an error of 0. AlphaFold-Multimer (Evans et al. 2022), Sec. 2.5 and Suppl. Sec. 7.4.
    """
    predicted, truth = _backbones(trajectory, true_frames)
    layers = len(trajectory)
    chains = asym_id.repeat(layers, 1)
    pairs = ChainPairs(frames=chains, points=chains, within=within)
    every = mask.expand(layers, *mask.shape)
    total = _summed_errors(predicted, truth, (every, every), clamp.expand(layers, *clamp.shape), pairs)
    counted = pairs.selected(slice(None), slice(None))[: len(mask)].to(mask.dtype)
    count = ((counted @ mask[..., None])[..., 0] * mask).sum(-1)
    return total.mean(0) / unit / (_COUNT_FLOOR + count)


def _backbones(trajectory: Float[Tensor, "l b r 7"], true_frames: Rigid) -> tuple[FramesAndPoints, FramesAndPoints]:
    """Return predicted and true backbone frames (l b r) with their origins, the C-alphas."""
    frames = rigid_from_tensor(trajectory)
    true_frames = Rigid(
        rotation=true_frames.rotation.expand_as(frames.rotation),
        translation=true_frames.translation.expand_as(frames.translation),
    )
    return (
        FramesAndPoints(frames=frames, points=frames.translation),
        FramesAndPoints(frames=true_frames, points=true_frames.translation),
    )


def sidechain_fape(
    structure: PredictedStructure, truth: RenamedTruth, aatype: Int[Tensor, "b r"], clamp: float
) -> Float[Tensor, " b"]:
    """Return the FAPE of all atoms in all rigid groups of the last iteration (Suppl. Alg. 20 line 28)."""
    # Differs from AlphaFold: groups of unknown residues do not count. This type has no groups, and the structure
    # module's matrices for them are not rotations.
    frames_mask = truth.frames_mask * (aatype != UNKNOWN)[..., None]
    groups = structure.rigid_groups[-1]

    def with_atoms(per_group: Float[Tensor, "b r 8 *rest"]) -> Float[Tensor, "b f *rest"]:
        # Groups 1 (pre-omega) and 2 (phi) have no atoms and no true frames.
        return torch.cat([per_group[:, :, :1], per_group[:, :, PSI_GROUP:]], 2).flatten(1, 2)

    return frame_aligned_point_error(
        FramesAndPoints(
            frames=Rigid(rotation=with_atoms(groups[..., :3]), translation=with_atoms(groups[..., 3])),
            points=structure.atom14[-1].flatten(1, 2),
        ),
        FramesAndPoints(
            frames=Rigid(rotation=with_atoms(truth.frames.rotation), translation=with_atoms(truth.frames.translation)),
            points=truth.atom14.flatten(1, 2),
        ),
        with_atoms(frames_mask),
        truth.atom14_mask.flatten(1, 2),
        truth.atom14.new_full(aatype.shape[:1], clamp),
    )
