"""Interfaces are measured as other programs measure them, and structures that do not touch have none."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from Bio.PDB.Atom import Atom
from Bio.PDB.Chain import Chain
from Bio.PDB.Residue import Residue
from Bio.PDB.SASA import ShrakeRupley

from data_pipeline.parse.structures import read_structure
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_TYPES, RESTYPES, THREE_LETTER
from data_pipeline.structure import protein_from_chains
from helixfold.analysis.metrics import superposition
from helixfold.apps.design.measures import (
    Atoms,
    alpha_rmsd,
    clashes,
    interface,
    interface_ipsae,
    interface_residues,
    means,
    pose_rmsd,
    structure_shares,
    unsatisfied,
)

pytest.importorskip("protein_interface", reason="needs the extra binders")

STRUCTURES = Path(__file__).parents[3] / "examples" / "structures"


def complex_of(name: str = "helical_hairpin") -> tuple[Protein, np.ndarray]:
    """A structure and a copy of it, which are as near to each other as atoms that are not bonded can be."""
    protein = protein_from_chains(read_structure(STRUCTURES / f"{name}.pdb").chains)
    atoms = protein.atom_positions[protein.atom_mask > 0.5].astype(np.float64)
    axis = np.linalg.svd(atoms - atoms.mean(0), full_matrices=False)[2][2]
    distance = next(
        each
        for each in np.arange(2, 30, 0.25)
        if np.linalg.norm(atoms[:, None] - atoms - each * axis, axis=-1).min() > 3
    )
    count = len(protein.aatype)
    joined = {
        each: np.concatenate([getattr(protein, each)] * 2)
        for each in ("aatype", "atom_positions", "atom_mask", "residue_index", "b_factors")
    }
    joined["atom_positions"][count:] += (distance * axis).astype(np.float32)
    binder = np.arange(2 * count) >= count
    return Protein(**joined, chain_index=binder.astype(int)), binder


def moved(protein: Protein, chosen: np.ndarray, shift: float) -> Protein:
    positions = protein.atom_positions.copy()
    positions[chosen] += np.array([shift, 0, 0], np.float32)
    return replace(protein, atom_positions=positions)


def area(protein: Protein, chosen: np.ndarray) -> float:
    """The area of chosen residues alone, by Biopython with the radii that biotite has."""
    info = pytest.importorskip("biotite.structure.info")
    chain = Chain("A")
    for place in np.flatnonzero(chosen):
        name = THREE_LETTER[protein.aatype[place]]
        residue = Residue((" ", int(place) + 1, " "), name, "")
        for slot in np.flatnonzero(protein.atom_mask[place] > 0.5):
            atom = ATOM_TYPES[slot]
            made = Atom(atom, protein.atom_positions[place, slot], 0, 1, " ", atom, int(slot), atom[0])
            made.radius = info.vdw_radius_protor(name, atom)
            residue.add(made)
        chain.add(residue)
    # Radii are of elements there, so that each of ours is an element of its own.
    for atom in chain.get_atoms():
        atom.element = f"{atom.radius}"
    radii = {atom.element: atom.radius for atom in chain.get_atoms()}
    ShrakeRupley(n_points=960, radii_dict=radii).compute(chain, level="C")
    return float(chain.sasa)


@pytest.mark.parametrize("name", ["helical_hairpin", "hairpin_long", "meander"])
def test_buried_area_is_biopythons(name: str) -> None:
    protein, binder = complex_of(name)
    alone, target, both = (area(protein, each) for each in (binder, ~binder, binder | True))
    found = interface(protein, binder)
    assert found["dSASA"] == pytest.approx(alone + target - both, rel=0.02)
    assert found["dSASA"] > 100


@pytest.mark.parametrize("name", ["helical_hairpin", "meander"])
def test_surface_residues_have_few_neighbours_before_their_side_chains(name: str) -> None:
    """Rosetta's formula, written residue by residue."""
    protein, binder = complex_of(name)
    chosen = [place for place in np.flatnonzero(binder).tolist() if RESTYPES[protein.aatype[place]] != "G"]
    surface = []
    for one in chosen:
        alpha, beta = (protein.atom_positions[one, ATOM_TYPES.index(atom)].astype(float) for atom in ("CA", "CB"))
        count = 0.0
        for other in chosen:
            if other != one:
                apart = protein.atom_positions[other, ATOM_TYPES.index("CB")] - beta
                distance = np.linalg.norm(apart)
                cosine = (apart / distance) @ ((beta - alpha) / np.linalg.norm(beta - alpha))
                count += max(0.0, (cosine + 0.5) / 1.5) ** 2 / (1 + np.exp(distance - 9))
        if count <= 2:
            surface.append(RESTYPES[protein.aatype[one]])
    assert 2 < len(surface) <= len(chosen)
    keep = np.isin(np.arange(len(protein.aatype)), chosen) | ~binder
    without_glycine = Protein(
        **{
            each: getattr(protein, each)[keep]
            for each in ("aatype", "atom_positions", "atom_mask", "residue_index", "chain_index", "b_factors")
        }
    )
    expected = np.isin(surface, list("ACFGILMPVWY")).mean()
    assert interface(without_glycine, binder[keep])["Surface_Hydrophobicity"] == pytest.approx(expected)


def test_buried_atoms_without_a_partner_are_counted() -> None:
    protein, _ = complex_of()
    first, other = 5, len(protein.aatype) // 2 + 5
    atoms = Atoms(positions=np.array([[0.0, 0, 0], [2.9, 0, 0]]), names=["O", "N"], residues=np.array([first, other]))
    exposed, buried = np.array([9.0, 9.0]), np.array([0.0, 0.0])
    assert unsatisfied(protein, atoms, exposed, buried) == 0
    far = replace(atoms, positions=np.array([[0.0, 0, 0], [3.6, 0, 0]]))
    assert unsatisfied(protein, far, exposed, buried) == 2
    # What was buried before, and what stays exposed, does not count; nor do two acceptors make a bond.
    assert unsatisfied(protein, far, buried, buried) == unsatisfied(protein, far, exposed, exposed) == 0
    assert unsatisfied(protein, replace(atoms, names=["O", "O"]), exposed, buried) == 2
    # Neighbours in a chain are near by bonds.
    near = replace(atoms, residues=np.array([first, first + 1]))
    assert unsatisfied(protein, near, exposed, buried) == 2


def test_interface_residues_are_those_within_four_angstrom() -> None:
    protein, binder = complex_of()
    mask = protein.atom_mask > 0.5
    expected = []
    for place, residue in enumerate(np.flatnonzero(binder)):
        own = protein.atom_positions[residue][mask[residue]]
        other = protein.atom_positions[~binder][mask[~binder]]
        if np.linalg.norm(own[:, None] - other, axis=-1).min() <= 4:
            expected.append(place)
    assert interface_residues(protein, binder) == expected
    assert expected
    found = interface(protein, binder)
    assert found["n_InterfaceResidues"] == len(expected) == sum(found["InterfaceAAs"].values())


def test_sides_that_do_not_touch_have_no_interface() -> None:
    protein, binder = complex_of()
    apart = moved(protein, binder, 200.0)
    assert interface_residues(apart, binder) == []
    found = interface(apart, binder)
    assert found["dSASA"] == pytest.approx(0, abs=1e-6)
    assert (found["ShapeComplementarity"], found["n_InterfaceHbonds"], found["InterfaceHbondsPercentage"]) == (
        None,
        0,
        0,
    )
    assert structure_shares(apart, binder)["i_pLDDT"] == 0


def test_clashes_are_between_chains_and_of_backbones() -> None:
    protein, binder = complex_of()
    assert clashes(protein) == clashes(protein, only_alpha=True) == 0
    first = int(np.flatnonzero(binder)[0])
    on_top = replace(protein, atom_positions=protein.atom_positions.copy())
    on_top.atom_positions[first] = protein.atom_positions[0]
    assert clashes(on_top) > 0
    assert clashes(on_top, only_alpha=True) >= 1
    # Neighbours in a chain may be close.
    near = replace(protein, atom_positions=protein.atom_positions.copy())
    near.atom_positions[1] = protein.atom_positions[0] + 0.1
    assert clashes(near, only_alpha=True) == clashes(protein, only_alpha=True)


def test_distances_to_the_designed_pose_are_of_the_binder_alone() -> None:
    protein, binder = complex_of()
    assert pose_rmsd(protein, protein, binder) == pytest.approx(0, abs=1e-4)
    shifted = moved(protein, binder, 3.0)
    assert pose_rmsd(shifted, protein, binder) == pytest.approx(3, abs=1e-3)
    # Where the complex lies does not count, and a binder alone is superposed.
    turn = superposition(np.eye(3), np.roll(np.eye(3), 1, axis=0))
    elsewhere = replace(shifted, atom_positions=turn.apply(shifted.atom_positions) + 50)
    assert pose_rmsd(elsewhere, protein, binder) == pytest.approx(3, abs=1e-2)
    true = protein.positions_of("CA")[binder].astype(np.float64)
    assert alpha_rmsd(elsewhere, binder, true) == pytest.approx(0, abs=1e-3)


def test_means_need_a_value_of_every_model() -> None:
    first = {"a": 1.0, "b": None, "c": {"K": 2, "M": 0}}
    second = {"a": 2.0, "b": 3.0, "c": {"K": 4, "M": 1}}
    assert means({1: first, 2: second}) == {"a": 1.5, "b": None, "c": {"K": 3.0, "M": 0.5}}


def test_ipsae_is_the_larger_of_both_directions() -> None:
    binder = np.arange(60) >= 30
    pae = np.full((60, 60), 30.0)
    pae[np.ix_(binder, ~binder)] = 1.0
    assert interface_ipsae(pae, binder) == interface_ipsae(pae.T, binder) > 0.5
    assert interface_ipsae(np.full((60, 60), 30.0), binder) == 0
