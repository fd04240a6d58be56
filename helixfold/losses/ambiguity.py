"""Decide which of two names the ambiguous atoms of the truth should bear, given a prediction."""

from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from data_pipeline.features.ground_truth import ATOM14_IS_AMBIGUOUS
from helixfold.geometry.rigid import Rigid
from helixfold.geometry.rigid_groups import RigidGroups
from helixfold.losses.labels import Labels

# The stretch of the 14 atoms in which all ambiguous ones lie, whatever the residue type: four atoms.
_SLOTS = np.flatnonzero(ATOM14_IS_AMBIGUOUS.sum(0))
_AMBIGUOUS = slice(int(_SLOTS[0]), int(_SLOTS[-1]) + 1)
# Relative error of a float32 sum over the atoms of a chain, generously.
_ROUNDING = 1e-5


@dataclass(frozen=True, kw_only=True)
class RenamedTruth:
    """The truth under the names that fit a prediction best."""

    atom14: Float[Tensor, "b r 14 3"]
    atom14_mask: Float[Tensor, "b r 14"]  # 1 where observed
    frames: Rigid  # b r 8
    frames_mask: Float[Tensor, "b r 8"]


@torch.no_grad()
def renamed_truth(atom14: Float[Tensor, "b r 14 3"], labels: Labels, groups: RigidGroups) -> RenamedTruth:
    """The truth that predicted atoms `atom14` are compared with (AlphaFold 2, Suppl. Alg. 26).

    No gradient passes through the choice.
    """
    swapped = alternative_is_better(
        atom14,
        labels.atom14_gt_positions,
        labels.atom14_gt_exists,
        labels.atom14_alt_gt_positions,
        labels.atom14_atom_is_ambiguous,
    )
    frames, alternative = groups.frames, groups.alternative
    per_atom = swapped[..., None]
    return RenamedTruth(
        atom14=torch.where(per_atom[..., None], labels.atom14_alt_gt_positions, labels.atom14_gt_positions),
        atom14_mask=torch.where(per_atom, labels.atom14_alt_gt_exists, labels.atom14_gt_exists),
        frames=Rigid(
            rotation=torch.where(per_atom[..., None, None], alternative.rotation, frames.rotation),
            translation=frames.translation,
        ),
        frames_mask=groups.mask,
    )


@torch.no_grad()
def alternative_is_better(
    predicted: Float[Tensor, "b r 14 3"],
    positions: Float[Tensor, "b r 14 3"],
    exists: Float[Tensor, "b r 14"],
    alternative: Float[Tensor, "b r 14 3"],
    ambiguous: Float[Tensor, "b r 14"],
) -> Bool[Tensor, "b r"]:
    """Return for each residue whether distances to all unambiguous atoms fit better under the other name."""
    unambiguous = rearrange(exists * (1 - ambiguous), "b r a -> b (r a) 1")
    # Where one atom of a pair is missing, the other's alternative position is that of a missing atom, the origin, and
    # the choice is a matter of chance. That is so in DeepMind's program.
    asked = (exists * ambiguous)[..., _AMBIGUOUS]
    found = _distances(predicted, predicted)

    def misfit(named: Float[Tensor, "b r 14 3"]) -> Float[Tensor, "b r"]:
        # The atoms that distances are measured to have one name only, so either set of positions holds them.
        errors = _distances(named, positions).sub_(found).abs_()
        return (rearrange(errors @ unambiguous, "b (r a) 1 -> b r a", r=asked.shape[1]) * asked).sum(-1)

    # Where the prediction is more compact than the truth, both misfits are one sum on paper, and rounding alone would
    # tell them apart: differently on another number of devices.
    return misfit(alternative) < (1 - _ROUNDING) * misfit(positions)


def _distances(ambiguous: Float[Tensor, "b r 14 3"], others: Float[Tensor, "b r 14 3"]) -> Float[Tensor, "b p q"]:
    """Return the distances from each atom that may be ambiguous to all atoms."""
    return torch.cdist(
        rearrange(ambiguous[:, :, _AMBIGUOUS], "b r a x -> b (r a) x"),
        rearrange(others, "b r a x -> b (r a) x"),
        # The expanded form |x|^2 - 2xy + |y|^2 loses the short distances.
        compute_mode="donot_use_mm_for_euclid_dist",
    )
