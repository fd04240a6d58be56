"""Experimental or predicted structures from files, and their protein chains."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.features.complexes.chain_ids import default_chain_ids
from data_pipeline.protein import Protein
from data_pipeline.residues import RESTYPES_WITH_X, THREE_LETTER


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Protein chain with all residues of its sequence (SEQRES), and atoms for the observed residues.

    Atoms are in the 37-atom layout (`residues.ATOM_TYPES`). The alternative position with the highest occupancy is
    used; MSE is read as MET (selenium as SD), and arginine's NH1 is the nitrogen closer to CD.

    `name` is the author's chain ID, and `residue_names` are the three-letter names in the file. `residue_numbers` and
    `insertion_codes` are the author's; unobserved residues have their position in the sequence. `is_cyclic` is whether
    the last residue is bonded to the first.
    """

    name: str  # the author's chain id ("A"), as in template databases and AlphaFold
    sequence: str  # one-letter codes, X for residues other than the twenty
    aatype: Int[np.ndarray, "r"]  # 0..20, 20 unknown
    atom_positions: Float[np.ndarray, "r 37 3"]  # float32, Å, 0 where unknown
    atom_mask: Float[np.ndarray, "r 37"]  # float32
    b_factors: Float[np.ndarray, "r 37"]  # float32; pLDDT (0..100) in predicted structures
    observed: Bool[np.ndarray, "r"]  # False for residues without atoms
    residue_names: tuple[str, ...]  # three letters, as in the file ("MSE")
    residue_numbers: Int[np.ndarray, "r"]  # the author's numbers; for unobserved residues, the position in the sequence
    insertion_codes: tuple[str, ...]  # one character each, " " if there is none
    is_cyclic: bool = False  # whether the file has a bond between the last and the first residue
    description: str = ""  # the protein's name in an mmCIF file


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Protein chains of the first model in a structure file.

    `name` is the entry ID in lower case, or the stem of the file name. `release_date` and `resolution` (Å) are None if
    unknown, and `method` is the experimental method in lower case. `skipped` has the reason for each chain left out.
    """

    name: str  # entry id in lower case ("1abc"), else the stem of the file name
    release_date: date | None  # first revision; None: unknown
    resolution: float | None  # Å; None: unknown or not applicable (NMR)
    method: str  # "x-ray diffraction", ...; "" unknown
    chains: tuple[Chain, ...]  # in file order
    skipped: dict[str, str]  # reason for each chain that was left out, by chain id


def protein_from_chains(chains: Sequence[Chain]) -> Protein:
    """Join chains into one protein, whose chain indices follow their order; the names of the chains are lost.

    A chain keeps the author's residue numbers if each is larger than the one before; otherwise they count from 1.
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


def chains_of_protein(protein: Protein, names: Sequence[str] = ()) -> tuple[Chain, ...]:
    """Return the chains of a protein, named by `names` in the order of its `chain_index`, or A, B and so on.

    Residues without atoms count as unobserved, and insertion codes are blank.
    """
    names = names or default_chain_ids(int(protein.chain_index.max()) + 1)
    chains = []
    for index, name in enumerate(names):
        own = protein.chain_index == index
        aatype, mask = protein.aatype[own], protein.atom_mask[own]
        chains.append(
            Chain(
                name=name,
                sequence="".join(RESTYPES_WITH_X[kind] for kind in aatype.tolist()),
                aatype=aatype,
                atom_positions=protein.atom_positions[own],
                atom_mask=mask,
                b_factors=protein.b_factors[own],
                observed=np.asarray((mask > 0).any(1)),
                residue_names=tuple(THREE_LETTER[kind] for kind in aatype.tolist()),
                residue_numbers=protein.residue_index[own],
                insertion_codes=(" ",) * len(aatype),
                is_cyclic=index in protein.cyclic_chains,
            )
        )
    return tuple(chains)
