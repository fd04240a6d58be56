"""Frame-aligned point error (FAPE), which compares points in the coordinates of all frames without superposition."""

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from data_pipeline.residue_geometry import PSI_GROUP
from data_pipeline.residues import UNKNOWN
from helixfold.geometry.rigid import Rigid, rigid_from_tensor
from helixfold.losses.ambiguity import RenamedTruth
from helixfold.losses.unmasked import unmasked
from helixfold.model.outputs import PredictedStructure
from helixfold.ops.card import card_of

UNIT = 10.0  # Angstrom that count as an error of 1
# Added to squared distances (Angstrom^2) and to counts (DeepMind's program). A perfect prediction therefore has an
# error of 0.01 Angstrom and a gradient.
_FLOOR = 1e-4
# Coordinate differences computed at once: as many as a CPU's cache holds, on other devices 256 MiB in float32.
_CPU_BLOCK, _LARGE_BLOCK = 2**16, 2**26


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

    Errors above `clamp` (Angstrom, may be infinite) count as `clamp`.
    """
    # The difference of a point's local coordinates, R^T (x - t) - R*^T (x* - t*), is linear in (x, x*, 1). One matrix
    # product of inverse frames [R^T, -R*^T, R*^T t* - R^T t] and homogeneous points gives it for all pairs.
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
    )
    return total.view(clamp.shape) / UNIT / (_FLOOR + frames_mask.sum(-1) * points_mask.sum(-1))


class _SummedErrors(torch.autograd.Function):
    """The sum of clamped errors over all unmasked pairs of frames and points, computed block by block.

    Autograd would save several tensors of all pairs, each 66 MB for 256 residues. This function computes the gradients
    already in the forward pass, so that only one block exists at a time, which on a CPU stays in the cache.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  # autograd functions are called with positions
        ctx: Any,
        inverse_frames: Float[Tensor, "n 3 f 7"],
        points: Float[Tensor, "n p 7"],
        frames_mask: Float[Tensor, "n f"],
        points_mask: Float[Tensor, "n p"],
        clamp: Float[Tensor, " n"],
    ) -> Float[Tensor, " n"]:
        grad_frames, grad_points = torch.zeros_like(inverse_frames), torch.zeros_like(points)
        total = torch.zeros_like(clamp)
        clamp = clamp[:, None, None]
        chosen, chosen_frames = unmasked(points_mask > 0), unmasked(frames_mask > 0)
        points_mask, points = points_mask[:, chosen], points[:, chosen]
        frames_mask, inverse_frames = frames_mask[:, chosen_frames], inverse_frames[:, :, chosen_frames]
        grad_chosen, grad_chosen_frames = torch.zeros_like(points), torch.empty_like(inverse_frames)
        block_size = _CPU_BLOCK if card_of(points.device).kind == "cpu" else _LARGE_BLOCK
        size = max(1, block_size // max(1, 3 * points_mask.numel()))
        for start in range(0, frames_mask.shape[1], size):
            frames = slice(start, start + size)
            block, block_mask = inverse_frames[:, :, frames], frames_mask[:, frames]
            matrix = rearrange(block, "n x f c -> n (x f) c")
            difference = rearrange(matrix @ points.mT, "n (x f) p -> n x f p", x=3)
            error = difference.square().sum(1).add_(_FLOOR).sqrt_()
            total += ((torch.minimum(error, clamp) @ points_mask[..., None])[..., 0] * block_mask).sum(-1)
            if any(ctx.needs_input_grad):
                weight = block_mask[..., None] * points_mask[:, None]
                slope = (weight / error).masked_fill_(error >= clamp, 0)
                grad_difference = rearrange(difference.mul_(slope[:, None]), "n x f p -> n (x f) p")
                grad_chosen_frames[:, :, frames] = rearrange(grad_difference @ points, "n (x f) c -> n x f c", x=3)
                grad_chosen += grad_difference.mT @ matrix
        grad_points[:, chosen], grad_frames[:, :, chosen_frames] = grad_chosen, grad_chosen_frames
        ctx.save_for_backward(grad_frames, grad_points)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, " n"]) -> tuple[Tensor | None, ...]:
        grad_frames, grad_points = ctx.saved_tensors
        return grad_frames * grad[:, None, None, None], grad_points * grad[:, None, None], None, None, None


def backbone_fape(
    trajectory: Float[Tensor, "l b r 7"], true_frames: Rigid, mask: Float[Tensor, "b r"], clamp: Float[Tensor, " b"]
) -> Float[Tensor, " b"]:
    """Return the FAPE of C-alphas in backbone frames (b r), the mean over iterations (Suppl. Alg. 20 line 17)."""
    frames = rigid_from_tensor(trajectory)
    true_frames = Rigid(
        rotation=true_frames.rotation.expand_as(frames.rotation),
        translation=true_frames.translation.expand_as(frames.translation),
    )
    mask, clamp = mask.expand(len(trajectory), *mask.shape), clamp.expand(len(trajectory), *clamp.shape)
    return frame_aligned_point_error(
        FramesAndPoints(frames=frames, points=frames.translation),
        FramesAndPoints(frames=true_frames, points=true_frames.translation),
        mask,
        mask,
        clamp,
    ).mean(0)


def sidechain_fape(
    structure: PredictedStructure, truth: RenamedTruth, aatype: Int[Tensor, "b r"], clamp: float
) -> Float[Tensor, " b"]:
    """Return the FAPE of all atoms in the frames of all rigid groups, last iteration only (Suppl. Alg. 20 line 28)."""
    # Differs from AlphaFold: groups of unknown residues do not count. This type has no groups, and the structure
    # module's matrices for them are no rotations.
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
