"""Convert a protein's arrays to OpenMM atoms, adding missing atoms and hydrogens, and back."""

import io
import random
from dataclasses import dataclass, replace

import numpy as np
import pdbfixer
from einops import einsum
from jaxtyping import Bool, Float, Int
from openmm import Platform, Vec3, app, unit

from data_pipeline.protein import Hydrogens, Protein
from data_pipeline.residues import ATOM_ORDER, ATOM_TYPES, THREE_LETTER, UNKNOWN
from helixfold.relax.pieces import Pieces

ANGSTROM_PER_NANOMETER = 10.0
_HYDROGEN = -1  # the `kind` of hydrogens
_CA = ATOM_ORDER["CA"]
# Names of atoms that stay when a side chain is turned.
_BACKBONE_NAMES = ("N", "CA", "C", "O", "OXT", "H", "H1", "H2", "H3")
_START_HYDROGENS = ("H2", "H3")  # hydrogens of the first residue of a chain only
_SEED = 0  # of the places of added atoms
# PDBFixer needs a file at first; its contents are replaced.
_PLACEHOLDER_PDB = "ATOM      1  N   GLY A   1       0.000   0.000   0.000  1.00  0.00           N  \n"


@dataclass(frozen=True, kw_only=True)
class Atoms:
    """OpenMM atoms and their indices in the protein's arrays.

    Positions are in nanometers. `residue` is the index of each atom's residue in the protein's arrays, and `kind` the
    index of its atom37 type, -1 for hydrogens. `is_predicted` is false for added atoms.
    """

    topology: app.Topology
    positions: Float[np.ndarray, "n 3"]  # nanometers
    residue: Int[np.ndarray, " n"]  # residue index in the protein's arrays
    kind: Int[np.ndarray, " n"]  # index into ATOM_TYPES, -1 for hydrogens
    names: tuple[str, ...]
    is_predicted: Bool[np.ndarray, " n"]  # false for added atoms


def completed(protein: Protein, pieces: Pieces, platform: Platform) -> Atoms:
    """Return the atoms of all pieces, with added missing heavy atoms and the hydrogens at pH 7, for OpenMM.

    Predicted atoms are not moved. Cysteines whose sulphur atoms are within 3 Angstrom form a disulphide bridge.
    """
    fixer = pdbfixer.PDBFixer(pdbfile=io.StringIO(_PLACEHOLDER_PDB), platform=platform)
    fixer.topology, fixer.positions = _topology(protein, pieces)
    fixer.missingResidues = {}
    # OpenMM uses Python's random generator to place hydrogens.
    state = random.getstate()
    random.seed(_SEED)
    try:
        fixer.findMissingAtoms()
        ends = {pieces.residues[ring][-1] for ring in pieces.rings}
        order = np.concatenate(pieces.residues)
        fixer.missingTerminals = {
            residue: names for residue, names in fixer.missingTerminals.items() if order[residue.index] not in ends
        }
        fixer.addMissingAtoms(seed=_SEED)
        _close_rings(fixer.topology, pieces)
        fixer.addMissingHydrogens(pH=7.0)
        _remove_hydrogens_of_ends(fixer, pieces)
    finally:
        random.setstate(state)
    return _located(fixer, protein, pieces)


def moved(protein: Protein, pieces: Pieces, atoms: Atoms, positions: Float[np.ndarray, "n 3"]) -> Protein:
    """Return the protein with new atom positions (nanometers) and the added heavy atoms.

    Atoms that were not modelled move with the C-alpha of their residue. Added atoms get the B-factor of their residue.
    """
    new_positions = positions * ANGSTROM_PER_NANOMETER
    coordinates, mask, b_factors = protein.atom_positions.copy(), protein.atom_mask.copy(), protein.b_factors.copy()
    heavy = _result_mask(pieces, protein, atoms) & (atoms.kind != _HYDROGEN)
    is_ca = atoms.kind == _CA
    shift = np.zeros((len(coordinates), 3))
    shift[atoms.residue[is_ca]] = new_positions[is_ca] - coordinates[atoms.residue[is_ca], _CA]
    coordinates += (shift[:, None] * (mask > 0.5)[..., None]).astype(coordinates.dtype)
    index = atoms.residue[heavy], atoms.kind[heavy]
    coordinates[index] = new_positions[heavy]
    b_factors[index] = np.where(mask[index] > 0.5, b_factors[index], b_factors[atoms.residue[heavy], _CA])
    mask[index] = 1
    return replace(protein, atom_positions=coordinates, atom_mask=mask, b_factors=b_factors)


def hydrogens(protein: Protein, pieces: Pieces, atoms: Atoms, positions: Float[np.ndarray, "n 3"]) -> Hydrogens:
    """Return the hydrogens among `atoms` at `positions` (nanometers), in Angstrom and in the order of residues.

    Terminal hydrogens at chain breaks, and hydrogens of unknown residues, are left out.
    """
    indices = np.flatnonzero(_result_mask(pieces, protein, atoms) & (atoms.kind == _HYDROGEN))
    indices = indices[np.argsort(atoms.residue[indices], kind="stable")]
    return Hydrogens(
        residue=atoms.residue[indices],
        names=tuple(atoms.names[index] for index in indices.tolist()),
        positions=positions[indices] * ANGSTROM_PER_NANOMETER,
    )


def with_side_chains_turned(
    positions: Float[np.ndarray, "n 3"], atoms: Atoms, residues: Bool[np.ndarray, "r"]
) -> Float[np.ndarray, "n 3"]:
    """Exchange C-beta and H-alpha of some residues, to convert between D- and L-amino acids.

    Each side chain is rotated as a whole by 180 degrees around the axis between the two bonds, so that it keeps its own
    handedness. Positions may have any unit.
    """
    result, names = positions.copy(), np.array(atoms.names)
    for residue in np.flatnonzero(residues):
        own = atoms.residue == residue
        alpha, beta, hydrogen = (positions[np.flatnonzero(own & (names == name))[0]] for name in ("CA", "CB", "HA"))
        axis = sum((each - alpha) / np.linalg.norm(each - alpha) for each in (beta, hydrogen))
        axis /= np.linalg.norm(axis)
        side = own & ~np.isin(names, _BACKBONE_NAMES)
        arms = positions[side] - alpha
        result[side] = alpha + 2 * einsum(arms, axis, "n x, x -> n")[:, None] * axis - arms
    return result


def _topology(protein: Protein, pieces: Pieces) -> tuple[app.Topology, unit.Quantity]:
    """Return the pieces as OpenMM chains of standard residues, in the protein's order, and their positions."""
    elements = {letter: app.Element.getBySymbol(letter) for letter in "CNOS"}
    topology, positions = app.Topology(), []
    for piece in pieces.residues:
        chain = topology.addChain()
        for index, residue in enumerate(piece.tolist(), 1):
            added = topology.addResidue(THREE_LETTER[pieces.aatype[residue]], chain, str(index))
            for atom in np.flatnonzero(pieces.atoms[residue]).tolist():
                name = ATOM_TYPES[atom]
                topology.addAtom(name, elements[name[0]], added)
                positions.append(Vec3(*(protein.atom_positions[residue, atom] / ANGSTROM_PER_NANOMETER).tolist()))
    topology.createStandardBonds()
    positions = positions * unit.nanometer
    topology.createDisulfideBonds(positions)
    return topology, positions


def _close_rings(topology: app.Topology, pieces: Pieces) -> None:
    """Bond the ends of cyclic chains in a topology of PDBFixer, which supports only peptide bonds within chains."""
    chains = list(topology.chains())
    for ring in pieces.rings:
        first, *_, last = chains[ring].residues()
        carbon = next(atom for atom in last.atoms() if atom.name == "C")
        nitrogen = next(atom for atom in first.atoms() if atom.name == "N")
        topology.addBond(carbon, nitrogen)


def _remove_hydrogens_of_ends(fixer: pdbfixer.PDBFixer, pieces: Pieces) -> None:
    """Remove the terminal hydrogens that OpenMM adds to the N of a ring's first residue."""
    chains = list(fixer.topology.chains())
    firsts = [next(chains[ring].residues()) for ring in pieces.rings]
    added = [atom for residue in firsts for atom in residue.atoms() if atom.name in _START_HYDROGENS]
    if added:
        modeller = app.Modeller(fixer.topology, fixer.positions)
        modeller.delete(added)
        fixer.topology, fixer.positions = modeller.topology, modeller.positions


def _located(fixer: pdbfixer.PDBFixer, protein: Protein, pieces: Pieces) -> Atoms:
    """Return the atoms of PDBFixer with their residues and kinds in the protein's arrays."""
    order = np.concatenate(pieces.residues)
    atoms = list(fixer.topology.atoms())
    residue = order[[atom.residue.index for atom in atoms]]
    kind = np.array([_HYDROGEN if atom.element.symbol == "H" else ATOM_ORDER[atom.name] for atom in atoms])
    return Atoms(
        topology=fixer.topology,
        positions=np.array(fixer.positions.value_in_unit(unit.nanometer), np.float64).reshape(-1, 3),
        residue=residue,
        kind=kind,
        names=tuple(atom.name for atom in atoms),
        is_predicted=(kind != _HYDROGEN) & (protein.atom_mask[residue, kind] > 0.5),
    )


def _result_mask(pieces: Pieces, protein: Protein, atoms: Atoms) -> Bool[np.ndarray, " n"]:
    """Return a mask of all atoms except terminal atoms at chain breaks and hydrogens of unknown residues."""
    names = np.array(atoms.names)
    start, end = pieces.starts[atoms.residue], pieces.ends[atoms.residue]
    at_break = (np.isin(names, _START_HYDROGENS) & ~start) | ((names == "OXT") & ~end)
    return ~at_break & ~((protein.aatype[atoms.residue] == UNKNOWN) & (atoms.kind == _HYDROGEN))
