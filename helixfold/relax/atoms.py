"""Turn a protein's arrays into OpenMM's atoms, with missing ones and hydrogens added, and back."""

import io
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pdbfixer
from jaxtyping import Bool, Float, Int
from openmm import Platform, Vec3, app, unit

from data_pipeline.protein import Hydrogens, Protein
from data_pipeline.residues import ATOM_ORDER, ATOM_TYPES, THREE_LETTER, UNKNOWN
from helixfold.relax.pieces import Pieces

ANGSTROM_PER_NANOMETER = 10.0
_HYDROGEN = -1  # in place of an atom's kind
_CA = ATOM_ORDER["CA"]
_SEED = 0
# PDBFixer begins with a file; what is in it is replaced at once.
_ANY_FILE = "ATOM      1  N   GLY A   1       0.000   0.000   0.000  1.00  0.00           N  \n"


@dataclass(frozen=True, kw_only=True)
class Atoms:
    """The atoms that OpenMM computes with, and where each of them is in the protein."""

    topology: app.Topology
    positions: Float[np.ndarray, "n 3"]  # nanometers
    residue: Int[np.ndarray, " n"]  # position in the protein's arrays
    kind: Int[np.ndarray, " n"]  # index into ATOM_TYPES, -1 for hydrogens
    names: tuple[str, ...]
    given: Bool[np.ndarray, " n"]  # the protein has it, it was not added here


def completed(protein: Protein, pieces: Pieces, platform: Platform) -> Atoms:
    """Return the pieces with every heavy atom and hydrogen that they should have at pH 7, placed without strain.

    Only what is added is moved. Cysteines whose sulphur atoms are within 3 Angstrom become a disulphide bridge.
    """
    with _drawn_alike():
        fixer = pdbfixer.PDBFixer(pdbfile=io.StringIO(_ANY_FILE), platform=platform)
        fixer.topology, fixer.positions = _topology(protein, pieces)
        fixer.missingResidues = {}
        fixer.findMissingAtoms()
        fixer.addMissingAtoms(seed=_SEED)
        fixer.addMissingHydrogens(pH=7.0)
    return _located(fixer, protein, pieces)


def moved(protein: Protein, pieces: Pieces, atoms: Atoms, positions: Float[np.ndarray, "n 3"]) -> Protein:
    """Return the protein with its atoms at new positions (nanometers), the added heavy atoms too.

    Atoms that had no place in the force field move along with their residue's C-alpha. An added atom gets the
    B-factor of its residue.
    """
    placed = positions * ANGSTROM_PER_NANOMETER
    coordinates, mask, b_factors = protein.atom_positions.copy(), protein.atom_mask.copy(), protein.b_factors.copy()
    heavy = _kept(pieces, protein, atoms) & (atoms.kind != _HYDROGEN)
    is_ca = atoms.kind == _CA
    shift = np.zeros((len(coordinates), 3))
    shift[atoms.residue[is_ca]] = placed[is_ca] - coordinates[atoms.residue[is_ca], _CA]
    coordinates += (shift[:, None] * (mask > 0.5)[..., None]).astype(coordinates.dtype)
    where = atoms.residue[heavy], atoms.kind[heavy]
    coordinates[where] = placed[heavy]
    b_factors[where] = np.where(mask[where] > 0.5, b_factors[where], b_factors[atoms.residue[heavy], _CA])
    mask[where] = 1
    return replace(protein, atom_positions=coordinates, atom_mask=mask, b_factors=b_factors)


def hydrogens(protein: Protein, pieces: Pieces, atoms: Atoms, positions: Float[np.ndarray, "n 3"]) -> Hydrogens:
    """Return the hydrogens among `atoms` at these positions (nanometers)."""
    chosen = np.flatnonzero(_kept(pieces, protein, atoms) & (atoms.kind == _HYDROGEN))
    chosen = chosen[np.argsort(atoms.residue[chosen], kind="stable")]
    return Hydrogens(
        residue=atoms.residue[chosen],
        names=tuple(atoms.names[index] for index in chosen.tolist()),
        positions=positions[chosen] * ANGSTROM_PER_NANOMETER,
    )


def _topology(protein: Protein, pieces: Pieces) -> tuple[app.Topology, unit.Quantity]:
    """Return the pieces as OpenMM's chains of standard residues, with positions; in the order of the protein."""
    elements = {letter: app.Element.getBySymbol(letter) for letter in "CNOS"}
    topology, positions = app.Topology(), []
    for piece in pieces.residues:
        chain = topology.addChain()
        for number, residue in enumerate(piece.tolist(), 1):
            added = topology.addResidue(THREE_LETTER[pieces.aatype[residue]], chain, str(number))
            for atom in np.flatnonzero(pieces.atoms[residue]).tolist():
                name = ATOM_TYPES[atom]
                topology.addAtom(name, elements[name[0]], added)
                positions.append(Vec3(*(protein.atom_positions[residue, atom] / ANGSTROM_PER_NANOMETER).tolist()))
    topology.createStandardBonds()
    positions = positions * unit.nanometer
    topology.createDisulfideBonds(positions)
    return topology, positions


def _located(fixer: pdbfixer.PDBFixer, protein: Protein, pieces: Pieces) -> Atoms:
    order = np.concatenate(pieces.residues)
    found = list(fixer.topology.atoms())
    residue = order[[atom.residue.index for atom in found]]
    kind = np.array([_HYDROGEN if atom.element.symbol == "H" else ATOM_ORDER[atom.name] for atom in found])
    return Atoms(
        topology=fixer.topology,
        positions=np.array(fixer.positions.value_in_unit(unit.nanometer), np.float64).reshape(-1, 3),
        residue=residue,
        kind=kind,
        names=tuple(atom.name for atom in found),
        given=(kind != _HYDROGEN) & (protein.atom_mask[residue, kind] > 0.5),
    )


def _kept(pieces: Pieces, protein: Protein, atoms: Atoms) -> Bool[np.ndarray, " n"]:
    """Return which atoms the protein gets back: no ends where a chain is broken, no hydrogens of unknown residues."""
    names = np.array(atoms.names)
    start, end = pieces.starts[atoms.residue], pieces.ends[atoms.residue]
    only_here = (np.isin(names, ("H2", "H3")) & ~start) | ((names == "OXT") & ~end)
    return ~only_here & ~((protein.aatype[atoms.residue] == UNKNOWN) & (atoms.kind == _HYDROGEN))


@contextmanager
def _drawn_alike() -> Iterator[None]:
    """Draw the same numbers every time: OpenMM places hydrogens with Python's own random ones."""
    state = random.getstate()
    random.seed(_SEED)
    try:
        yield
    finally:
        random.setstate(state)
