"""Chains and atoms of a protein, as the writers of coordinate files need them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from data_pipeline import residues
from data_pipeline.features.complexes.chain_ids import MAX_CHAINS, check_chain_ids, default_chain_ids
from data_pipeline.protein import Hydrogens, Protein

_N, _C = residues.ATOM_ORDER["N"], residues.ATOM_ORDER["C"]


@dataclass(frozen=True, kw_only=True)
class ChainRange:
    """A chain's name in coordinate files, and the range of its residues, `start` to `stop` - 1, in the arrays."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Atom:
    """One atom of a coordinate file, possibly a hydrogen."""

    residue: int  # index in the protein's arrays
    name: str
    element: str  # one letter, for all elements of proteins
    position: tuple[float, float, float]  # Å
    b_factor: float


@dataclass(frozen=True, kw_only=True)
class RingBond:
    """The bond between the ends of a cyclic chain: from the C of its last residue to the N of its first one."""

    chain: str
    first: int  # index in the protein's arrays
    last: int  # the same
    length: float  # Å


def ring_bonds(protein: Protein, chains: Sequence[ChainRange]) -> list[RingBond]:
    """Return the bonds between the ends of cyclic chains for which both atoms are present."""
    bonds, present = [], protein.atom_mask > 0.5
    for chain in chains:
        first, last = chain.start, chain.stop - 1
        if int(protein.chain_index[first]) in protein.cyclic_chains and present[last, _C] and present[first, _N]:
            ends = protein.atom_positions[last, _C] - protein.atom_positions[first, _N]
            bonds.append(RingBond(chain=chain.name, first=first, last=last, length=float(np.linalg.norm(ends))))
    return bonds


def split_chains(protein: Protein, chain_ids: Sequence[str] = ()) -> list[ChainRange]:
    """Return the ranges of the protein's chains in order, named by `chain_ids`, or A, B, ... by default.

    `protein.chain_index` is each residue's index in `chain_ids`. Raise `ValueError` if the structure is not valid for a
    coordinate file.
    """
    present = protein.atom_mask > 0.5
    if not present.any():
        raise ValueError(f"a structure needs at least one atom, got none in {len(protein.aatype)} residues")
    for what, values in (("coordinates", protein.atom_positions[present]), ("B-factors", protein.b_factors[present])):
        if not np.isfinite(values).all():
            raise ValueError(f"{what} must be finite, got {np.sum(~np.isfinite(values))} NaN or infinite values")

    index = protein.chain_index
    max_chains = len(chain_ids) or MAX_CHAINS
    if not (index.min() >= 0 and index.max() < max_chains):
        raise ValueError(f"chain_index must be 0 to {max_chains - 1}, got {index.min()} to {index.max()}")
    names = chain_ids or default_chain_ids(int(index.max()) + 1)
    check_chain_ids(names, len(names))
    edges = [0, *(np.flatnonzero(np.diff(index)) + 1).tolist(), len(index)]
    chains = []
    for start, stop in itertools.pairwise(edges):
        steps = np.flatnonzero(np.diff(protein.residue_index[start:stop]) < 1)
        if steps.size:
            first, second = protein.residue_index[start + steps[0] :][:2]
            raise ValueError(f"residue numbers must increase along a chain, got {second} after {first}")
        chains.append(ChainRange(name=names[index[start]], start=start, stop=stop))
    order = [chain.name for chain in chains]
    if len(set(order)) < len(order):
        raise ValueError(f"the residues of a chain must be contiguous, got chains in the order {' '.join(order)}")
    return chains


def iterate_atoms(protein: Protein, chain: ChainRange, hydrogens: Hydrogens | None = None) -> Iterator[Atom]:
    """Yield a chain's atoms with a mask above 0.5, residue by residue, with each residue's hydrogens last.

    Hydrogens get the B-factor of their residue's first atom.
    """
    hydrogen_residues = np.zeros(0, np.int64) if hydrogens is None else hydrogens.residue
    edges = np.searchsorted(hydrogen_residues, np.arange(chain.start, chain.stop + 1)).tolist()
    for residue, (first, last) in enumerate(itertools.pairwise(edges), chain.start):
        atoms = np.flatnonzero(protein.atom_mask[residue] > 0.5).tolist()
        for atom in atoms:
            name = residues.ATOM_TYPES[atom]
            x, y, z = protein.atom_positions[residue, atom].tolist()
            b_factor = float(protein.b_factors[residue, atom])
            yield Atom(residue=residue, name=name, element=name[0], position=(x, y, z), b_factor=b_factor)
        if hydrogens is not None and atoms:
            b_factor = float(protein.b_factors[residue, atoms[0]])
            for index in range(first, last):
                x, y, z = hydrogens.positions[index].tolist()
                yield Atom(
                    residue=residue,
                    name=hydrogens.names[index],
                    element="H",
                    position=(x, y, z),
                    b_factor=b_factor,
                )
