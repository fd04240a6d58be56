"""Chains of an experimental (or predicted) structure: the sequence first, atoms where they were observed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.protein import Protein


@dataclass(frozen=True, kw_only=True)
class Chain:
    """One polypeptide: every residue of its sequence (SEQRES), with atoms for those that were observed.

    Atoms are in the 37-atom layout (`residues.ATOM_TYPES`): highest occupancy of each alternative, MSE as MET (its
    selenium as SD), arginine's NH1 the one nearer to CD.
    """

    name: str  # the author's chain id ("A"), the one that template databases and AlphaFold use
    sequence: str  # one letter each, X for residues that are none of the twenty
    aatype: Int[np.ndarray, "r"]  # 0..20, 20 unknown
    atom_positions: Float[np.ndarray, "r 37 3"]  # float32, Angstrom, 0 where unknown
    atom_mask: Float[np.ndarray, "r 37"]  # float32
    b_factors: Float[np.ndarray, "r 37"]  # float32; pLDDT (0..100) in predicted structures
    observed: Bool[np.ndarray, "r"]  # False: in the sequence, but without atoms
    residue_names: tuple[str, ...]  # three letters, as in the file ("MSE")
    residue_numbers: Int[np.ndarray, "r"]  # the author's numbers; where not observed, the position in the sequence
    insertion_codes: tuple[str, ...]  # one character each, " " for none


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The first model of one entry."""

    name: str  # entry id in lower case ("1abc"), else the file's stem
    release_date: date | None  # first revision; None: unknown
    resolution: float | None  # Angstrom; None: unknown or none (NMR)
    method: str  # "x-ray diffraction", ...; "" unknown
    chains: tuple[Chain, ...]  # in file order
    skipped: dict[str, str]  # why each chain that is not among them was left out, by chain id


def protein_from_chains(chains: Sequence[Chain]) -> Protein:
    """Chains as one protein, called A, B and so on; the author's residue numbers where they increase, else from 1."""
    numbers = [
        chain.residue_numbers if (np.diff(chain.residue_numbers) > 0).all() else np.arange(1, len(chain.aatype) + 1)
        for chain in chains
    ]
    return Protein(
        aatype=np.concatenate([chain.aatype for chain in chains]),
        atom_positions=np.concatenate([chain.atom_positions for chain in chains]),
        atom_mask=np.concatenate([chain.atom_mask for chain in chains]),
        residue_index=np.concatenate(numbers),
        chain_index=np.repeat(np.arange(len(chains)), [len(chain.aatype) for chain in chains]),
        b_factors=np.concatenate([chain.b_factors for chain in chains]),
    )
