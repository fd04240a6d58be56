"""Complexes of short chains in which nothing is regular: lengths, numbering, residue types and missing atoms."""

from dataclasses import replace

import numpy as np

from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM37_MASK, ATOM_ORDER, RESTYPES
from data_pipeline.structure import Chain

# Of each chain: its sequence and its residue numbers. Of unequal chains the longer ones are neither all first nor all
# last, and B and C are equal; numbers restart, begin at 0 or below, and have gaps.
SEQUENCES = {
    "A": ("GADEFGYXR", [0, 1, 2, 3, 4, 5, 6, 7, 8]),
    "B": ("MKGXDFLNGSYEPRW", [1, 2, 3, 4, 5, 6, 20, 21, 22, 23, 24, 25, 26, 27, 28]),
    "C": ("MKGXDFLNGSYEPRW", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
    "D": ("GGYVLAEKDGHT", [-3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 100]),
}
_BACKBONE = [ATOM_ORDER[name] for name in ("N", "CA", "C")]


def uneven_chains(names: str = "ABCD", seed: int = 0) -> list[Chain]:
    """Chains that touch each other; about a tenth of their atoms were not observed, some C-beta among them."""
    rng = np.random.default_rng(seed)
    return [_chain(name, *SEQUENCES[name], rng) for name in names]


def _chain(name: str, sequence: str, numbers: list[int], rng: np.random.Generator) -> Chain:
    length = len(sequence)
    aatype = np.array([RESTYPES.find(letter) % 21 for letter in sequence])
    # Compact, so that every chain is within reach of every other.
    points = rng.normal(size=(length, 1, 3)) * 5 + rng.normal(size=3) * 3
    atoms = points + rng.normal(size=(length, 37, 3)) * 1.5
    mask = ATOM37_MASK[aatype].copy()
    # An unknown residue may have any atoms.
    mask[aatype == 20] = np.arange(37) < 5
    mask[:, 3:] *= rng.random((length, 34)) > 0.1
    mask[1, ATOM_ORDER["CB"]] = 0
    return Chain(
        name=name,
        sequence=sequence,
        aatype=aatype,
        atom_positions=(atoms * mask[..., None]).astype(np.float32),
        atom_mask=mask.astype(np.float32),
        b_factors=np.zeros_like(mask, dtype=np.float32),
        observed=mask.any(1),
        residue_names=("UNK",) * length,
        residue_numbers=np.array(numbers),
        insertion_codes=(" ",) * length,
    )


def displaced(chain: Chain, size: float, seed: int) -> Chain:
    """The chain as a prediction has it, whose errors differ from atom to atom, and with all atoms of its types."""
    rng = np.random.default_rng(seed)
    mask = np.where(chain.aatype[:, None] == 20, np.arange(37) < 5, ATOM37_MASK[chain.aatype]).astype(np.float32)
    centres = chain.atom_positions[:, ATOM_ORDER["CA"], None]
    known = np.where(chain.atom_mask[..., None] > 0, chain.atom_positions, centres + rng.normal(size=(37, 3)))
    moved = known + rng.normal(size=3) * size + rng.normal(size=known.shape) * size * rng.random((len(known), 1, 1))
    return replace(chain, atom_positions=(moved * mask[..., None]).astype(np.float32), atom_mask=mask)


def without_residues(chain: Chain, *rows: int) -> Chain:
    """The chain without some residues, which its sequence lacks too."""
    kept = np.array([row for row in range(len(chain.aatype)) if row not in rows])
    return replace(
        chain,
        sequence="".join(chain.sequence[row] for row in kept),
        **{name: getattr(chain, name)[kept] for name in ("aatype", "atom_positions", "atom_mask", "b_factors")},
        **{name: getattr(chain, name)[kept] for name in ("observed", "residue_numbers")},
        residue_names=tuple(chain.residue_names[row] for row in kept),
        insertion_codes=tuple(chain.insertion_codes[row] for row in kept),
    )


def without_backbone(chain: Chain, row: int) -> Chain:
    """The chain with a residue whose backbone was not observed."""
    mask = chain.atom_mask.copy()
    mask[row, _BACKBONE] = 0
    return replace(chain, atom_mask=mask, atom_positions=chain.atom_positions * mask[..., None])


def as_protein(chains: list[Chain]) -> Protein:
    """The chains' residues one after another, with their own numbers."""
    joined = {
        name: np.concatenate([getattr(chain, name) for chain in chains])
        for name in ("aatype", "atom_positions", "atom_mask", "b_factors")
    }
    return Protein(
        **joined,
        residue_index=np.concatenate([chain.residue_numbers for chain in chains]),
        chain_index=np.repeat(np.arange(len(chains)), [len(chain.aatype) for chain in chains]),
    )
