"""Protein structures as arrays, both predicted and read from files."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from data_pipeline.residues import ATOM_ORDER


@dataclass(frozen=True, kw_only=True)
class Protein:
    """Residues in chain order with their atoms in the 37-atom layout (`residues.ATOM_TYPES`).

    `aatype` is 0..20, with 20 unknown, and positions are in Å. `residue_index` has the residue numbers of PDB files,
    and `chain_index` counts chains from 0. `b_factors` are pLDDT (0..100) for predictions. `cyclic_chains` has the
    index of each chain whose last residue is bonded to its first one.
    """

    aatype: Int[np.ndarray, "r"]  # 0..20, 20 unknown
    atom_positions: Float[np.ndarray, "r 37 3"]  # Angstrom
    atom_mask: Float[np.ndarray, "r 37"]
    residue_index: Int[np.ndarray, "r"]  # as numbered in PDB files, from 1
    chain_index: Int[np.ndarray, "r"]  # 0 is chain A
    b_factors: Float[np.ndarray, "r 37"]  # pLDDT 0..100 for predictions
    # Chains, as numbered by `chain_index`, whose last residue is bonded to their first one.
    cyclic_chains: frozenset[int] = frozenset()

    def positions_of(self, atom: str) -> Float[np.ndarray, "r 3"]:
        """Return the positions of one atom, such as "CA", in each residue; NaN where the residue lacks it."""
        slot = ATOM_ORDER[atom]
        return np.where(self.atom_mask[:, slot, None] > 0.5, self.atom_positions[:, slot], np.nan)


@dataclass(frozen=True, kw_only=True)
class Hydrogens:
    """Hydrogen atoms of a protein, in the order of its residues; the 37-atom layout does not contain them.

    `residue` is the index of each atom's residue in the protein's arrays.
    """

    residue: Int[np.ndarray, "h"]  # index into the protein's arrays
    names: tuple[str, ...]  # PDB names, such as "HA", "HB2", "HD11"
    positions: Float[np.ndarray, "h 3"]  # Angstrom
