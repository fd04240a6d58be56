"""Compare all points as seen from all frames, so that no superposition is needed: FAPE, the loss that folds."""

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
from helixfold.model.outputs import Structure
from helixfold.ops.card import card_of

UNIT = 10.0  # Angstrom that count as an error of 1
# Angstrom^2 added to squared distances, and number added to counts (DeepMind's program). So a perfect prediction
# has an error of 0.01 Angstrom and a gradient.
_FLOOR = 1e-4
# Differences of coordinates that are computed at once: what a CPU's cache holds, elsewhere 256 MiB in float32.
_CPU_BLOCK, _LARGE_BLOCK = 2**16, 2**26


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Frames (`*batch f`) and points of one structure, in Angstrom."""

    frames: Rigid
    points: Float[Tensor, "*batch p 3"]


def frame_aligned_point_error(
    found: Placed,
    truth: Placed,
    frames_mask: Float[Tensor, "*batch f"],
    points_mask: Float[Tensor, "*batch p"],
    clamp: Float[Tensor, "*batch"],
) -> Float[Tensor, "*batch"]:
    """Mean error of every point in every frame (AlphaFold 2, Suppl. Alg. 28), in units of 10 Angstrom.

    `clamp`, the largest error that counts, is in Angstrom and may be infinite.
    """
    # What a point's local coordinates differ by, R^T (x - t) - R*^T (x* - t*), is linear in (x, x*, 1): one product
    # gives it for all pairs of frames and points.
    turn, true_turn = found.frames.rotation.mT, truth.frames.rotation.mT
    origins = true_turn @ truth.frames.translation[..., None] - turn @ found.frames.translation[..., None]
    views = rearrange(torch.cat([turn, -true_turn, origins], -1), "... f x c -> ... x f c")
    seen = torch.cat([found.points, truth.points, torch.ones_like(found.points[..., :1])], -1)
    total: Tensor = _SummedErrors.apply(
        views.flatten(0, -4),
        seen.flatten(0, -3),
        frames_mask.flatten(0, -2),
        points_mask.flatten(0, -2),
        clamp.flatten().to(points_mask.dtype),
    )
    return total.view(clamp.shape) / UNIT / (_FLOOR + frames_mask.sum(-1) * points_mask.sum(-1))


class _SummedErrors(torch.autograd.Function):
    """Errors up to `clamp` summed over all pairs of frames and points that count, by blocks, with their gradient.

    All pairs of 256 residues take 66 MB for each step of the calculation that torch would keep until the backward
    pass. Here they never exist at once, and on a CPU a block stays in its cache.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  # autograd functions are called with positions
        ctx: Any,
        views: Float[Tensor, "n 3 f 7"],
        seen: Float[Tensor, "n p 7"],
        frames_mask: Float[Tensor, "n f"],
        points_mask: Float[Tensor, "n p"],
        clamp: Float[Tensor, " n"],
    ) -> Float[Tensor, " n"]:
        views_grad, seen_grad = torch.zeros_like(views), torch.zeros_like(seen)
        total = torch.zeros_like(clamp)
        clamp = clamp[:, None, None]
        points = _counting(points_mask)
        points_mask, seen = points_mask[:, points], seen[:, points]
        pull_on_seen = torch.zeros_like(seen)
        block_size = _CPU_BLOCK if seen.device.type == "cpu" else _LARGE_BLOCK
        for frames in _counting(frames_mask).split(max(1, block_size // max(1, 3 * points_mask.numel()))):
            block, block_mask = views[:, :, frames], frames_mask[:, frames]
            seeing = rearrange(block, "n x f c -> n (x f) c")
            difference = rearrange(seeing @ seen.mT, "n (x f) p -> n x f p", x=3)
            error = difference.square().sum(1).add_(_FLOOR).sqrt_()
            total += ((torch.minimum(error, clamp) @ points_mask[..., None])[..., 0] * block_mask).sum(-1)
            if any(ctx.needs_input_grad):
                weight = block_mask[..., None] * points_mask[:, None]
                pull = (weight / error).masked_fill_(error >= clamp, 0)
                force = rearrange(difference.mul_(pull[:, None]), "n x f p -> n (x f) p")
                views_grad[:, :, frames] = rearrange(force @ seen, "n (x f) c -> n x f c", x=3)
                pull_on_seen += force.mT @ seeing
        seen_grad[:, points] = pull_on_seen
        ctx.save_for_backward(views_grad, seen_grad)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, " n"]) -> tuple[Tensor | None, ...]:
        views_grad, seen_grad = ctx.saved_tensors
        return views_grad * grad[:, None, None, None], seen_grad * grad[:, None, None], None, None, None


def _counting(mask: Float[Tensor, "n k"]) -> Int[Tensor, " kept"]:
    """Return those that count in some sample; all where asking would make the host wait for the device."""
    if card_of(mask.device).kind != "cpu":
        return torch.arange(mask.shape[1], device=mask.device)
    # Of a tensor without numbers: about half of all rigid groups and of all atoms are there in a protein.
    return torch.arange(mask.shape[1] // 2, device=mask.device) if mask.is_meta else mask.any(0).nonzero()[:, 0]


def backbone_fape(
    trajectory: Float[Tensor, "l b r 7"], true_frames: Rigid, mask: Float[Tensor, "b r"], clamp: Float[Tensor, " b"]
) -> Float[Tensor, " b"]:
    """Compare C-alphas as seen from backbone frames (b r), the mean over iterations (Suppl. Alg. 20 line 17)."""
    frames = rigid_from_tensor(trajectory)
    true_frames = Rigid(
        rotation=true_frames.rotation.expand_as(frames.rotation),
        translation=true_frames.translation.expand_as(frames.translation),
    )
    mask, clamp = mask.expand(len(trajectory), *mask.shape), clamp.expand(len(trajectory), *clamp.shape)
    return frame_aligned_point_error(
        Placed(frames=frames, points=frames.translation),
        Placed(frames=true_frames, points=true_frames.translation),
        mask,
        mask,
        clamp,
    ).mean(0)


def sidechain_fape(
    structure: Structure, truth: RenamedTruth, aatype: Int[Tensor, "b r"], clamp: float
) -> Float[Tensor, " b"]:
    """Compare all atoms as seen from the frames of all rigid groups, in the last iteration (Suppl. Alg. 20 line 28)."""
    # Differs from AlphaFold: an unknown residue's groups do not count. Its type has none to predict: what the
    # structure module gives for them are no rotations.
    frames_mask = truth.frames_mask * (aatype != UNKNOWN)[..., None]
    groups = structure.rigid_groups[-1]

    def with_atoms(per_group: Float[Tensor, "b r 8 *rest"]) -> Float[Tensor, "b f *rest"]:
        # Groups 1 (pre-omega) and 2 (phi) carry none and have no true frame.
        return torch.cat([per_group[:, :, :1], per_group[:, :, PSI_GROUP:]], 2).flatten(1, 2)

    return frame_aligned_point_error(
        Placed(
            frames=Rigid(rotation=with_atoms(groups[..., :3]), translation=with_atoms(groups[..., 3])),
            points=structure.atom14[-1].flatten(1, 2),
        ),
        Placed(
            frames=Rigid(rotation=with_atoms(truth.frames.rotation), translation=with_atoms(truth.frames.translation)),
            points=truth.atom14.flatten(1, 2),
        ),
        with_atoms(frames_mask),
        truth.atom14_mask.flatten(1, 2),
        truth.atom14.new_full(aatype.shape[:1], clamp),
    )
