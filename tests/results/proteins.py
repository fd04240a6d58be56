"""Structures to write, and what gemmi and Biopython find when they read them back."""

import io
from pathlib import Path
from typing import Any

import gemmi
import numpy as np
from Bio.PDB import MMCIFParser, PDBParser
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from data_pipeline import residues
from data_pipeline.protein import Protein

# (chain, residue number, residue name, atom name) -> x, y, z, B
Atoms = dict[tuple[str, int, str, str], tuple[float, ...]]


def random_protein(length: int, *, chains: int = 1, unknown: tuple[int, ...] = (), seed: int = 0) -> Protein:
    """All heavy atoms, none for unknown residues; chains of about equal length, each numbered from 1."""
    random = np.random.default_rng(seed)
    aatype = random.integers(0, 20, length)
    aatype[list(unknown)] = residues.UNKNOWN
    mask = np.array(residues.ATOM37_MASK)[aatype]
    chain_index = np.sort(np.arange(length) % chains)
    return Protein(
        aatype=aatype,
        atom_positions=(random.normal(size=(length, 37, 3)) * 20).astype(np.float32),
        atom_mask=mask,
        residue_index=np.concatenate([np.arange(np.sum(chain_index == chain)) + 1 for chain in range(chains)]),
        chain_index=chain_index,
        b_factors=(random.uniform(20, 99, (length, 1)) * mask).astype(np.float32),
    )


@st.composite
def proteins(draw: st.DrawFn) -> Protein:
    """Small structures with anything that the type allows: unknown residues, missing atoms, gaps in the numbers."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    total = sum(lengths)
    names = draw(st.lists(st.integers(0, 61), min_size=len(lengths), max_size=len(lengths), unique=True))
    numbers = [draw(st.lists(st.integers(1, 9999), min_size=n, max_size=n, unique=True).map(sorted)) for n in lengths]
    mask = draw(arrays.arrays(np.float32, (total, 37), elements=st.sampled_from([0, 1]), fill=st.just(0)))
    mask[draw(st.integers(0, total - 1)), 1] = 1
    return Protein(
        aatype=draw(arrays.arrays(np.int32, total, elements=st.integers(0, 20))),
        atom_positions=draw(arrays.arrays(np.float32, (total, 37, 3), elements=st.floats(-999, 9999, width=32))),
        atom_mask=mask,
        residue_index=np.concatenate(numbers),
        chain_index=np.repeat(names, lengths),
        b_factors=draw(arrays.arrays(np.float32, (total, 37), elements=st.floats(0, 100, width=32))),
    )


def real_protein(path: Path) -> Protein:
    """The first polymer chain of a real entry, its B-factors kept below 100."""
    chain = gemmi.read_structure(str(path))[0][0].get_polymer()
    found = [residue for residue in chain.first_conformer() if residue.name in residues.THREE_LETTER]
    shape = (len(found), 37)
    positions, mask, b_factors = np.zeros((*shape, 3), np.float32), np.zeros(shape, np.float32), np.zeros(shape)
    for place, residue in enumerate(found):
        for atom in residue:
            if atom.name in residues.ATOM_ORDER:
                where = (place, residues.ATOM_ORDER[atom.name])
                positions[where], mask[where], b_factors[where] = atom.pos.tolist(), 1, min(atom.b_iso, 100)
    return Protein(
        aatype=np.array([residues.THREE_LETTER.index(residue.name) for residue in found]),
        atom_positions=positions,
        atom_mask=mask,
        residue_index=np.array([residue.seqid.num for residue in found]),
        chain_index=np.zeros(len(found), np.int64),
        b_factors=b_factors,
    )


def chain_name(index: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"[index]


def expected_sequences(protein: Protein) -> dict[str, list[str]]:
    return {
        chain_name(chain): [residues.THREE_LETTER[kind] for kind in protein.aatype[protein.chain_index == chain]]
        for chain in dict.fromkeys(protein.chain_index.tolist())
    }


def expected_atoms(protein: Protein) -> Atoms:
    return {
        (
            chain_name(protein.chain_index[residue]),
            int(protein.residue_index[residue]),
            residues.THREE_LETTER[protein.aatype[residue]],
            residues.ATOM_TYPES[atom],
        ): (*protein.atom_positions[residue, atom], protein.b_factors[residue, atom])
        for residue, atom in np.argwhere(protein.atom_mask > 0.5).tolist()
    }


def atoms_by_gemmi(structure: gemmi.Structure) -> Atoms:
    assert len(structure) == 1
    found: Atoms = {}
    for place in structure[0].all():
        key = (place.chain.name, place.residue.seqid.num, place.residue.name, place.atom.name)
        assert key not in found
        assert place.residue.seqid.icode == " "
        assert place.atom.element.name == place.atom.name[0]
        assert place.atom.occ == 1
        found[key] = (*place.atom.pos.tolist(), place.atom.b_iso)
    return found


def atoms_by_biopython(parser: PDBParser | MMCIFParser, text: str) -> Atoms:
    structure: Any = parser.get_structure("x", io.StringIO(text))
    found: Atoms = {}
    for atom in structure.get_atoms():
        residue = atom.get_parent()
        hetero, number, insertion = residue.id
        assert (hetero, insertion) == (" ", " ")
        key = (residue.get_parent().id, number, residue.resname, atom.name)
        found[key] = (*atom.coord.tolist(), atom.bfactor)
    return found


def assert_same_atoms(found: Atoms, expected: Atoms) -> None:
    """Equal names in any order, coordinates to the third and B-factors to the second decimal."""
    assert found.keys() == expected.keys()
    difference = np.abs(np.array([found[key] for key in expected]) - np.array(list(expected.values())))
    assert difference[:, :3].max() <= 1e-3
    assert difference[:, 3].max() <= 1e-2
