"""Rename ambiguous atoms of the true structure so that they fit a prediction best."""

from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from data_pipeline.features.ground_truth import ATOM14_IS_AMBIGUOUS
from helixfold.losses.labels import Labels
from helixfold.model.geometry.rigid import Rigid
from helixfold.model.geometry.rigid_groups import RigidGroups

# The four atom14 slots with the ambiguous atoms of all residue types.
_SLOTS = np.flatnonzero(ATOM14_IS_AMBIGUOUS.sum(0))
_AMBIGUOUS = slice(int(_SLOTS[0]), int(_SLOTS[-1]) + 1)
# Upper bound of the relative rounding error of a float32 sum over the atoms of a chain.
_ROUNDING = 1e-5


@dataclass(frozen=True, kw_only=True)
class RenamedTruth:
    """The true structure with the atom names that fit a prediction best, in Angstrom.

    `frames` are the frames of the eight rigid groups, and `frames_mask` is 1 where their atoms are observed.
    """

    atom14: Float[Tensor, "b r 14 3"]
    atom14_mask: Float[Tensor, "b r 14"]  # 1 where observed
    frames: Rigid  # b r 8
    frames_mask: Float[Tensor, "b r 8"]


@torch.no_grad()
def renamed_truth(atom14: Float[Tensor, "b r 14 3"], labels: Labels, groups: RigidGroups) -> RenamedTruth:
    """Return the true structure with the atom names that fit the predicted atoms best (AlphaFold 2, Suppl. Alg. 26).

    The choice of names has no gradient.
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
    """Return for each residue whether its alternative true positions fit the predicted distances better.

    Only distances from its ambiguous atoms to unambiguous atoms of all residues count, and only observed atoms
    (`exists`). If both fit equally well, return False.
    """
    unambiguous = rearrange(exists * (1 - ambiguous), "b r a -> b (r a) 1")
    # If one atom of an ambiguous pair is missing, the alternative position of the other is the origin, and the choice
    # is arbitrary, as in DeepMind's program.
    observed = (exists * ambiguous)[..., _AMBIGUOUS]
    predicted_distances = _distances(predicted, predicted)

    def misfit(named: Float[Tensor, "b r 14 3"]) -> Float[Tensor, "b r"]:
        """Return for each residue the sum of distance errors if its true atoms have the positions `named`."""
        # Unambiguous atoms have the same positions in both sets.
        errors = _distances(named, positions).sub_(predicted_distances).abs_()
        return (rearrange(errors @ unambiguous, "b (r a) 1 -> b r a", r=observed.shape[1]) * observed).sum(-1)

    # If the prediction is more compact than the truth, both misfits are mathematically equal. With the margin, the
    # choice does not depend on rounding, which differs between numbers of devices.
    return misfit(alternative) < (1 - _ROUNDING) * misfit(positions)


def _distances(ambiguous: Float[Tensor, "b r 14 3"], others: Float[Tensor, "b r 14 3"]) -> Float[Tensor, "b p q"]:
    """Return the distances from each atom in the ambiguous slots to all atoms."""
    return torch.cdist(
        rearrange(ambiguous[:, :, _AMBIGUOUS], "b r a x -> b (r a) x"),
        rearrange(others, "b r a x -> b (r a) x"),
        # The expanded form |x|^2 - 2xy + |y|^2 is inaccurate for short distances.
        compute_mode="donot_use_mm_for_euclid_dist",
    )
