"""Residue types, atom names, and the tables that relate them.

Orders and names are AlphaFold's, so that its parameters and features can be used unchanged. All arrays are read-only.

Residue types are indices: 0..19 for `RESTYPES`, then `UNKNOWN`, `GAP` and, in sampled MSAs, `MASKED`. Tables have a row
for each of types 0..20. `THREE_LETTER` are their names, and `AMBIGUOUS_LETTERS` are letters other than the twenty.
`HHBLITS_TO_OUR_AATYPE` has the residue type of each number in HHblits's order.

The 37-atom layout has a slot for each of `ATOM_TYPES`, and `ATOM_ORDER` has the slot of each atom name. `ATOM14_NAMES`
has the atoms of each type in the 14-atom layout. `ATOM14_TO_ATOM37` has the slot in the 37-atom layout of each atom in
the 14-atom layout, and `ATOM37_TO_ATOM14` the inverse; both are 0 without an atom. `ATOM14_TO_RIGID_GROUP` has the
rigid group of each atom, and `ATOM14_RIGID_GROUP_POSITIONS` its position (Å) there. Masks are 1 where a residue type
has the atom or the chi angle. `CHI_PI_PERIODIC` is 1 for angles that are symmetric under 180 degrees, and
`CHI_ATOM_INDICES` has the four atoms of each chi angle in the 37-atom layout. `RIGID_GROUP_DEFAULT_FRAME` has the 4 x 4
transform of each rigid group relative to its parent, with torsions of 0.
"""

from typing import Final

import numpy as np
from jaxtyping import Float, Int

from data_pipeline.residue_geometry import CHI1_GROUP, CHI_CHAINS, IDEAL_ATOMS, PI_PERIODIC_CHI, PSI_GROUP

RESTYPES: Final = "ARNDCQEGHILKMFPSTWYV"
UNKNOWN: Final = 20
GAP: Final = 21
MASKED: Final = 22  # only in sampled MSAs, for BERT masking
RESTYPES_WITH_X: Final = RESTYPES + "X"
RESTYPES_WITH_X_AND_GAP: Final = RESTYPES_WITH_X + "-"
# Letters that are not one of the standard residues: B = D or N, J = I or L, O = pyrrolysine, U = selenocysteine,
# X = any, Z = E or Q. In a target sequence, they are unknown residues.
AMBIGUOUS_LETTERS: Final = "BJOUXZ"

THREE_LETTER: Final[tuple[str, ...]] = (
    *("ALA", "ARG", "ASN", "ASP", "CYS", "GLN", "GLU", "GLY", "HIS", "ILE"),
    *("LEU", "LYS", "MET", "PHE", "PRO", "SER", "THR", "TRP", "TYR", "VAL"),
    "UNK",
)

ATOM_TYPES: Final[tuple[str, ...]] = (
    *("N", "CA", "C", "CB", "O", "CG", "CG1", "CG2", "OG", "OG1", "SG", "CD", "CD1", "CD2", "ND1", "ND2", "OD1", "OD2"),
    *("SD", "CE", "CE1", "CE2", "CE3", "NE", "NE1", "NE2", "OE1", "OE2", "CH2", "NH1", "NH2", "OH", "CZ", "CZ2", "CZ3"),
    *("NZ", "OXT"),
)
ATOM_ORDER: Final[dict[str, int]] = {name: index for index, name in enumerate(ATOM_TYPES)}


# Heavy atoms of each residue type in the 14-atom layout, padded with "".
ATOM14_NAMES: Final[tuple[tuple[str, ...], ...]] = tuple(
    tuple([name for name, *_ in atoms] + [""] * (14 - len(atoms)))
    for atoms in (IDEAL_ATOMS.get(residue, ()) for residue in THREE_LETTER)
)


def _atom_layouts() -> tuple[
    Float[np.ndarray, "21 37"],
    Float[np.ndarray, "21 14"],
    Int[np.ndarray, "21 14"],
    Int[np.ndarray, "21 37"],
    Int[np.ndarray, "21 14"],
    Float[np.ndarray, "21 14 3"],
]:
    """Return arrays with one row per restype, from `IDEAL_ATOMS`.

    They are: the masks of atom37 and atom14; for each atom14 slot its atom37 index, and the reverse; for each atom14
    slot its rigid group and ideal position in Angstrom.
    """
    atom37_mask, atom14_mask = np.zeros((21, 37), np.float32), np.zeros((21, 14), np.float32)
    to_atom37, to_atom14 = np.zeros((21, 14), np.int64), np.zeros((21, 37), np.int64)
    group, positions = np.zeros((21, 14), np.int64), np.zeros((21, 14, 3), np.float32)
    for restype, residue in enumerate(THREE_LETTER):
        for slot, (name, atom_group, *position) in enumerate(IDEAL_ATOMS.get(residue, ())):
            atom = ATOM_ORDER[name]
            atom37_mask[restype, atom] = atom14_mask[restype, slot] = 1
            to_atom37[restype, slot], to_atom14[restype, atom] = atom, slot
            group[restype, slot], positions[restype, slot] = atom_group, position
    return atom37_mask, atom14_mask, to_atom37, to_atom14, group, positions


def _chi_angles() -> tuple[Float[np.ndarray, "21 4"], Float[np.ndarray, "21 4"], Int[np.ndarray, "21 4 4"]]:
    """Return for each restype and chi: does it exist, is it the same after 180 degrees, and its four atom37 indices."""
    mask, periodic = np.zeros((21, 4), np.float32), np.zeros((21, 4), np.float32)
    atoms = np.zeros((21, 4, 4), np.int64)
    for restype, residue in enumerate(THREE_LETTER):
        chain = [ATOM_ORDER[name] for name in CHI_CHAINS.get(residue, ())]
        for chi in range(len(chain) - 3):
            mask[restype, chi] = 1
            atoms[restype, chi] = chain[chi : chi + 4]
        if residue in PI_PERIODIC_CHI:
            periodic[restype, PI_PERIODIC_CHI[residue] - 1] = 1
    return mask, periodic, atoms


def _frame(x_axis: np.ndarray, xy_plane: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """Return the 4 x 4 transform whose x axis is along `x_axis` and whose xy plane contains `xy_plane`."""
    x = x_axis / np.linalg.norm(x_axis)
    y = xy_plane - (xy_plane @ x) * x
    y = y / np.linalg.norm(y)
    frame = np.eye(4)
    frame[:3] = np.stack([x, y, np.cross(x, y), origin], axis=1)
    return frame


def _default_frames() -> np.ndarray:
    """Return the frame of each rigid group relative to its parent, with all torsion angles 0 (Suppl. Sec. 1.8.4)."""
    frames = np.zeros((21, 8, 4, 4), np.float32)
    for restype, residue in enumerate(THREE_LETTER[:UNKNOWN]):
        atoms = {name: np.array(position) for name, _, *position in IDEAL_ATOMS[residue]}
        frames[restype, :2] = np.eye(4)
        frames[restype, 2] = _frame(atoms["N"] - atoms["CA"], np.array([1.0, 0.0, 0.0]), atoms["N"])
        frames[restype, PSI_GROUP] = _frame(atoms["C"] - atoms["CA"], atoms["CA"] - atoms["N"], atoms["C"])
        chain = [atoms[name] for name in CHI_CHAINS.get(residue, ())]
        if chain:
            frames[restype, CHI1_GROUP] = _frame(chain[2] - chain[1], chain[0] - chain[1], chain[2])
        # From chi2, the far atom of the bond is in the previous group, whose origin is the near atom of the bond.
        for further, bond_end in enumerate(chain[3:-1], start=1):
            frames[restype, CHI1_GROUP + further] = _frame(bond_end, np.array([-1.0, 0.0, 0.0]), bond_end)
    return frames


(
    ATOM37_MASK,
    ATOM14_MASK,
    ATOM14_TO_ATOM37,  # 0 where there is no atom
    ATOM37_TO_ATOM14,  # 0 where there is no atom
    ATOM14_TO_RIGID_GROUP,
    ATOM14_RIGID_GROUP_POSITIONS,  # Å, in the frame of the atom's rigid group
) = _atom_layouts()

# The atoms are indices into ATOM_TYPES, or 0 if the residue lacks the angle.
CHI_ANGLES_MASK, CHI_PI_PERIODIC, CHI_ATOM_INDICES = _chi_angles()

# Frames are 0 for angles that a residue lacks; groups 0 and 1 are the identity.
RIGID_GROUP_DEFAULT_FRAME: Float[np.ndarray, "21 8 4 4"] = _default_frames()

# HHblits numbers residues alphabetically by letter, then X and gap.
HHBLITS_TO_OUR_AATYPE: Int[np.ndarray, "22"] = np.array(
    [RESTYPES_WITH_X_AND_GAP.index(letter) for letter in "ACDEFGHIKLMNPQRSTVWYX-"], np.int64
)

for _table in [value for value in globals().values() if isinstance(value, np.ndarray)]:
    _table.flags.writeable = False
