"""Build the chains of a `Structure` from a table of atoms, whatever the file format.

`MAX_RESIDUES` limits the residues of all chains of a structure. `NO_ATOM_TYPE` is the type of atoms that are not in the
37-atom layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
from Bio.Data.PDBData import protein_letters_3to1_extended
from jaxtyping import Float, Int, Shaped

from data_pipeline.io.errors import InputError
from data_pipeline.residues import ATOM_ORDER, ATOM_TYPES, RESTYPES, RESTYPES_WITH_X
from data_pipeline.structure import Chain

MAX_RESIDUES = 2**18  # of all chains of a structure; their arrays take about 200 MB
NO_ATOM_TYPE = -1  # atoms other than the 37 types, such as hydrogens

_CD, _NH1, _NH2 = (ATOM_ORDER[name] for name in ("CD", "NH1", "NH2"))


@dataclass(frozen=True, kw_only=True)
class AtomTable:
    """Table of n atoms in file order, with one array per column.

    `component_names` are the distinct residue names, and `component` is each atom's index into these. `atom_type` is
    the index into `ATOM_TYPES`, or `NO_ATOM_TYPE`. Residue numbers and insertion codes (" " for none) are the author's.
    Positions are in Å, NaN where unknown. `b_factor` is in Å², or pLDDT in predicted structures.
    """

    component_names: tuple[str, ...]  # the distinct residue names
    component: Int[np.ndarray, "n"]  # index into `component_names`
    atom_type: Int[np.ndarray, "n"]  # index into `ATOM_TYPES`, or `NO_ATOM_TYPE`
    residue_number: Int[np.ndarray, "n"]  # the author's
    insertion_code: Shaped[np.ndarray, "n"]  # one character each, " " if there is none
    position: Float[np.ndarray, "n 3"]  # float32, Å; NaN where unknown
    occupancy: Float[np.ndarray, "n"]
    b_factor: Float[np.ndarray, "n"]  # Å², or pLDDT in predicted structures

    def rows(self, index: Int[np.ndarray, "k"]) -> "AtomTable":
        """Return the table of the rows at `index`."""
        return AtomTable(
            component_names=self.component_names,
            component=self.component[index],
            atom_type=self.atom_type[index],
            residue_number=self.residue_number[index],
            insertion_code=self.insertion_code[index],
            position=self.position[index],
            occupancy=self.occupancy[index],
            b_factor=self.b_factor[index],
        )


def residue_letter(name: str) -> str:
    """Return the one-letter code of a three-letter residue name; a modified residue has its parent's ("MSE": M).

    Residues without a parent among the twenty are X.
    """
    letter = str(protein_letters_3to1_extended.get(name, "X"))
    return letter if letter in RESTYPES else "X"


def atom_type(atom_name: str) -> int:
    """Return the index of an atom name in `ATOM_TYPES`, or `NO_ATOM_TYPE`."""
    return ATOM_ORDER.get(atom_name, NO_ATOM_TYPE)


def selenium_as_sulphur(
    atom_types: Int[np.ndarray, "n"], is_selenium: Shaped[np.ndarray, "n"], is_mse: Shaped[np.ndarray, "n"]
) -> Int[np.ndarray, "n"]:
    """Return the atom types, with the type of SD for atoms that are SE in the residue MSE (selenomethionine)."""
    return np.where(is_selenium & is_mse, ATOM_ORDER["SD"], atom_types)


def chain_from_atoms(
    name: str, sequence: Sequence[str], atoms: AtomTable, residue: Int[np.ndarray, "n"], *, first_number: int = 1
) -> Chain:
    """Return a chain whose residues are the components named in `sequence`, with atom k in residue `residue[k]`.

    `sequence` has three-letter names, and residue indices count from 0. If another component was observed at a residue,
    `residue_names` has its name, but the one-letter sequence is from `sequence`. Atoms without coordinates are left
    out. The alternative position with the highest occupancy is used, or the first in the file if several are equal.
    Unobserved residues are numbered by their position in the sequence, starting at `first_number`.
    """
    has_position = np.flatnonzero(np.isfinite(atoms.position).all(axis=1))
    if len(has_position) < len(residue):
        atoms, residue = atoms.rows(has_position), residue[has_position]
    length = len(sequence)
    component = _component_at_each_residue(sequence, atoms, residue)
    observed = component >= 0
    selected = np.flatnonzero(atoms.component == component[residue])
    numbers = np.arange(first_number, first_number + length, dtype=np.int32)
    insertion_codes = np.full(length, " ", dtype="U1")
    backwards = selected[::-1]  # NumPy keeps the last value for repeated indices, here the first row of a residue
    numbers[residue[backwards]] = atoms.residue_number[backwards]
    insertion_codes[residue[backwards]] = atoms.insertion_code[backwards]

    positions = np.zeros((length, len(ATOM_TYPES), 3), np.float32)
    mask = np.zeros((length, len(ATOM_TYPES)), np.float32)
    b_factors = np.zeros_like(mask)
    typed = backwards[atoms.atom_type[backwards] != NO_ATOM_TYPE]
    by_occupancy = typed[np.argsort(atoms.occupancy[typed], kind="stable")]
    slots = residue[by_occupancy], atoms.atom_type[by_occupancy]
    positions[slots] = atoms.position[by_occupancy]
    b_factors[slots] = atoms.b_factor[by_occupancy]
    mask[slots] = 1

    names = tuple(atoms.component_names[index] if index >= 0 else sequence[k] for k, index in enumerate(component))
    is_arginine = np.array([name == "ARG" for name in names], dtype=bool)
    _name_arginine_nitrogens(is_arginine, positions, mask, b_factors)
    letters = "".join(map(residue_letter, sequence))
    return Chain(
        name=name,
        sequence=letters,
        aatype=np.array([RESTYPES_WITH_X.index(letter) for letter in letters], dtype=np.int64),
        atom_positions=positions,
        atom_mask=mask,
        b_factors=b_factors,
        observed=observed,
        residue_names=names,
        residue_numbers=numbers,
        insertion_codes=tuple(insertion_codes.tolist()),
    )


def _component_at_each_residue(
    sequence: Sequence[str], atoms: AtomTable, residue: Int[np.ndarray, "n"]
) -> Int[np.ndarray, "r"]:
    """Return the index of the observed component of each residue, -1 for unobserved residues.

    If several components share a position (microheterogeneity), the one in the sequence is used, else the first.
    """
    index_of = {component: index for index, component in enumerate(atoms.component_names)}
    sequence_component = np.array([index_of.get(component, -1) for component in sequence], dtype=np.int64)
    observed = np.full(len(sequence), -1, dtype=np.int64)
    observed[residue[::-1]] = atoms.component[::-1]
    as_stated = residue[atoms.component == sequence_component[residue]]
    observed[as_stated] = sequence_component[as_stated]
    return observed


def _name_arginine_nitrogens(
    is_arginine: Shaped[np.ndarray, "r"],
    positions: Float[np.ndarray, "r 37 3"],
    mask: Float[np.ndarray, "r 37"],
    b_factors: Float[np.ndarray, "r 37"],
) -> None:
    """Swap NH1 and NH2 in place where NH2 is closer to CD, because NH1 is cis (AlphaFold 2, Suppl. Sec. 1.2.1)."""
    rows = np.flatnonzero(is_arginine & (mask[:, [_CD, _NH1, _NH2]] > 0).all(axis=1))
    to_nh1 = np.linalg.norm(positions[rows, _NH1] - positions[rows, _CD], axis=-1)
    to_nh2 = np.linalg.norm(positions[rows, _NH2] - positions[rows, _CD], axis=-1)
    rows = rows[to_nh1 > to_nh2]
    for array in (positions, b_factors):
        array[rows, _NH1], array[rows, _NH2] = array[rows, _NH2], array[rows, _NH1]


def groups(keys: Int[np.ndarray, "n"], count: int) -> list[Int[np.ndarray, "k"]]:
    """Return the row indices of each key 0, 1, ..., `count` - 1, in file order."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.searchsorted(keys[order], np.arange(1, count)))


def check_residues(count: int, path: str | PathLike[str]) -> None:
    """Raise `InputError` if `count`, the residues of all chains of a structure so far, is above `MAX_RESIDUES`."""
    if count > MAX_RESIDUES:
        raise InputError.at(path, f"its protein chains have more than the maximum of {MAX_RESIDUES:,} residues")
