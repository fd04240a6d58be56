"""Experimental or predicted structures, as read from files, and their protein chains."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.protein import Protein


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Protein chain with every residue of its sequence (SEQRES), and atoms for the observed residues.

    Atoms are in the 37-atom layout (`residues.ATOM_TYPES`). Of alternative positions the one with the highest occupancy
    is taken; MSE is read as MET (selenium as SD), and arginine's NH1 is the nitrogen nearer to CD.
    """

    name: str  # the author's chain id ("A"), the one that template databases and AlphaFold use
    sequence: str  # one-letter codes, X for residues that are none of the twenty
    aatype: Int[np.ndarray, "r"]  # 0..20, 20 unknown
    atom_positions: Float[np.ndarray, "r 37 3"]  # float32, Angstrom, 0 where unknown
    atom_mask: Float[np.ndarray, "r 37"]  # float32
    b_factors: Float[np.ndarray, "r 37"]  # float32; pLDDT (0..100) in predicted structures
    observed: Bool[np.ndarray, "r"]  # False: in the sequence, but without atoms
    residue_names: tuple[str, ...]  # three letters, as in the file ("MSE")
    residue_numbers: Int[np.ndarray, "r"]  # the author's numbers; where not observed, the position in the sequence
    insertion_codes: tuple[str, ...]  # one character each, " " for none
    is_cyclic: bool = False  # whether the file says that the last residue is bonded to the first one


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Protein chains of the first model in a structure file."""

    name: str  # entry id in lower case ("1abc"), else the file's stem
    release_date: date | None  # first revision; None: unknown
    resolution: float | None  # Angstrom; None: unknown or none (NMR)
    method: str  # "x-ray diffraction", ...; "" unknown
    chains: tuple[Chain, ...]  # in file order
    skipped: dict[str, str]  # reasons for the chains that were left out, by chain id


def protein_from_chains(chains: Sequence[Chain]) -> Protein:
    """Join chains into one protein, in which they are named A, B and so on.

    The author's residue numbers of a chain are retained if they increase; else its residues are numbered from 1.
    """
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
        cyclic_chains=frozenset(index for index, chain in enumerate(chains) if chain.is_cyclic),
    )
