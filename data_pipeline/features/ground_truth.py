"""Ground truth for the losses: the observed atoms of a chain in both atom layouts, with alternative atom names.

The losses compute frames and torsion angles from these atoms on the device. Atoms that a rotation of a planar group by
180 degrees exchanges are ambiguous: `ATOM14_IS_AMBIGUOUS` is 1 for these. `ATOM14_ALTERNATIVE` has the slot of the
other name of each atom, or its own slot if it is not ambiguous.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int, Int32, Num

from data_pipeline.features.labels import ChainLabels
from data_pipeline.residues import (
    ATOM14_MASK,
    ATOM14_NAMES,
    ATOM14_TO_ATOM37,
    ATOM37_MASK,
    THREE_LETTER,
)
from data_pipeline.sampling.templates import pseudo_beta

# Atoms that are exchanged by rotating a planar group by 180 degrees, so that their names are arbitrary.
# AlphaFold 2, Suppl. Table 3.
_EXCHANGED = {
    "ASP": (("OD1", "OD2"),),
    "GLU": (("OE1", "OE2"),),
    "PHE": (("CD1", "CD2"), ("CE1", "CE2")),
    "TYR": (("CD1", "CD2"), ("CE1", "CE2")),
}


def _alternative_names() -> np.ndarray:
    """Return for each restype and atom14 slot the slot whose name is exchanged with it, or the slot itself."""
    other = np.tile(np.arange(14), (len(THREE_LETTER), 1))
    for residue, pairs in _EXCHANGED.items():
        restype = THREE_LETTER.index(residue)
        for first, second in pairs:
            one, two = ATOM14_NAMES[restype].index(first), ATOM14_NAMES[restype].index(second)
            other[restype, one], other[restype, two] = two, one
    return other


ATOM14_ALTERNATIVE: Int[np.ndarray, "21 14"] = _alternative_names()  # slot of each atom's alternative name
ATOM14_IS_AMBIGUOUS: Float32[np.ndarray, "21 14"] = (np.arange(14) != ATOM14_ALTERNATIVE).astype(np.float32)
for _table in (ATOM14_ALTERNATIVE, ATOM14_IS_AMBIGUOUS):
    _table.flags.writeable = False


@dataclass(frozen=True, kw_only=True)
class GroundTruth:
    """Labels of the residues of one crop, with AlphaFold's names; positions are in Å.

    A mask whose name has both `gt` and `exists` is 1 where the atom was observed; one with only `exists` is 1 where the
    residue type has the atom. Arrays with `alt` have the names of ambiguous atoms exchanged. `pseudo_beta` is the
    position of C-beta, or of C-alpha for glycine.
    """

    aatype: Int32[np.ndarray, "r"]  # the true residue types, for which the model's input may have X
    all_atom_positions: Float32[np.ndarray, "r 37 3"]
    all_atom_mask: Float32[np.ndarray, "r 37"]
    atom37_atom_exists: Float32[np.ndarray, "r 37"]
    atom14_atom_exists: Float32[np.ndarray, "r 14"]
    atom14_gt_positions: Float32[np.ndarray, "r 14 3"]
    atom14_gt_exists: Float32[np.ndarray, "r 14"]
    atom14_alt_gt_positions: Float32[np.ndarray, "r 14 3"]  # as above, with exchanged names of ambiguous atoms
    atom14_alt_gt_exists: Float32[np.ndarray, "r 14"]
    atom14_atom_is_ambiguous: Float32[np.ndarray, "r 14"]
    pseudo_beta: Float32[np.ndarray, "r 3"]  # C-beta, or C-alpha for glycine
    pseudo_beta_mask: Float32[np.ndarray, "r"]


def ground_truth(aatype: Int[np.ndarray, "r"], labels: ChainLabels) -> GroundTruth:
    """Return the ground truth for the losses from the residue types and the labels of the same residues.

    AlphaFold 2, Suppl. Alg. 26 and Table 3.
    """
    positions, mask = labels.all_atom_positions.astype(np.float32), labels.all_atom_mask.astype(np.float32)
    to_atom37 = ATOM14_TO_ATOM37[aatype]
    exists = ATOM14_MASK[aatype] * _take_atoms(mask, to_atom37)
    atom14 = _take_atoms(positions, to_atom37) * exists[..., None]
    alternative = ATOM14_ALTERNATIVE[aatype]
    beta, beta_mask = pseudo_beta(aatype, positions, mask)
    return GroundTruth(
        aatype=aatype.astype(np.int32),
        all_atom_positions=positions,
        all_atom_mask=mask,
        atom37_atom_exists=ATOM37_MASK[aatype],
        atom14_atom_exists=ATOM14_MASK[aatype],
        atom14_gt_positions=atom14,
        atom14_gt_exists=exists,
        atom14_alt_gt_positions=_take_atoms(atom14, alternative),
        atom14_alt_gt_exists=_take_atoms(exists, alternative),
        atom14_atom_is_ambiguous=ATOM14_IS_AMBIGUOUS[aatype],
        pseudo_beta=beta,
        pseudo_beta_mask=beta_mask,
    )


def _take_atoms(values: Num[np.ndarray, "r a *rest"], atoms: Int[np.ndarray, "r b"]) -> Num[np.ndarray, "r b *rest"]:
    """Return for each residue the values of its atoms with these indices."""
    return values[np.arange(len(values))[:, None], atoms]
