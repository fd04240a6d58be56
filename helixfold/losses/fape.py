"""Compare all points as seen from all frames, so that no superposition is needed: FAPE, the loss that folds."""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from data_pipeline.residues import UNKNOWN
from helixfold.geometry.rigid import Rigid, rigid_from_tensor
from helixfold.losses.ambiguity import RenamedTruth
from helixfold.model.outputs import Structure

UNIT = 10.0  # Angstrom that count as an error of 1
# Angstrom^2 added to squared distances, and number added to counts (DeepMind's program). So a perfect prediction
# has an error of 0.01 Angstrom and a gradient.
_FLOOR = 1e-4
# Groups 1 (pre-omega) and 2 (phi) carry no atoms and so have no true frame.
_GROUPS_WITH_ATOMS = [0, 3, 4, 5, 6, 7]


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
    # gives it for all pairs of frames and points, with nothing as large as the pairs beside it.
    turn, true_turn = found.frames.rotation.mT, truth.frames.rotation.mT
    origins = true_turn @ truth.frames.translation[..., None] - turn @ found.frames.translation[..., None]
    views = rearrange(torch.cat([turn, -true_turn, origins], -1), "... f x c -> ... (x f) c")
    seen = torch.cat([found.points, truth.points, torch.ones_like(found.points[..., :1])], -1)
    difference = rearrange(views @ seen.mT, "... (x f) p -> ... x f p", x=3)

    errors = torch.sqrt(difference.square().sum(-3) + _FLOOR)
    errors = torch.minimum(errors, clamp[..., None, None])
    total = ((errors @ points_mask[..., None])[..., 0] * frames_mask).sum(-1)
    return total / UNIT / (_FLOOR + frames_mask.sum(-1) * points_mask.sum(-1))


def backbone_fape(
    trajectory: Float[Tensor, "l b r 7"], true_frames: Rigid, mask: Float[Tensor, "b r"], clamp: Float[Tensor, " b"]
) -> Float[Tensor, " b"]:
    """C-alphas as seen from backbone frames (b r), the mean over iterations (Suppl. Alg. 20 line 17)."""
    frames = rigid_from_tensor(trajectory)
    rotation, translation = true_frames.rotation, true_frames.translation
    layers = len(trajectory)
    true_frames = Rigid(
        rotation=rotation.expand(layers, *rotation.shape), translation=translation.expand(layers, *translation.shape)
    )
    mask, clamp = mask.expand(layers, *mask.shape), clamp.expand(layers, *clamp.shape)
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
    """All atoms as seen from the frames of all rigid groups, in the last iteration (Suppl. Alg. 20 line 28)."""
    # Differs from AlphaFold: an unknown residue's groups do not count. Its type has none to predict: what the
    # structure module gives for them are no rotations.
    frames_mask = truth.frames_mask * (aatype != UNKNOWN)[..., None]
    groups = structure.rigid_groups[-1]

    def with_atoms(per_group: Float[Tensor, "b r 8 *rest"]) -> Float[Tensor, "b f *rest"]:
        return per_group[:, :, _GROUPS_WITH_ATOMS].flatten(1, 2)

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
