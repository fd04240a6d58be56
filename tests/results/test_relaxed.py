"""Relaxed structures are written as the predicted ones are, with their hydrogens, and read back."""

from dataclasses import replace
from pathlib import Path

import gemmi
import numpy as np
import pytest

from data_pipeline.protein import Hydrogens
from data_pipeline.residues import ATOM_ORDER
from helixfold.folding.prediction import Prediction
from helixfold.relax.flaws import Flaws
from helixfold.relax.problem import RelaxationError
from helixfold.relax.result import Relaxed
from helixfold.results.prediction import read_finished, write_prediction
from helixfold.results.relaxed import (
    read_metrics,
    read_unrelaxed,
    relaxation_metrics,
    write_metrics,
    write_relaxed,
)
from tests.results.proteins import random_protein
from tests.results.test_prediction import NOTE, prediction, read_json

CLEAN = Flaws(residues=0, bonds=0, clashes=0, within=0)
NAMES = ("H", "HA", "HB2", "HD11", "HH12")


def written(directory: Path) -> tuple[Prediction, Relaxed]:
    one = prediction()
    write_prediction(directory, one)
    found = read_finished(directory, one.model)
    assert found is not None
    protein = replace(one.protein, atom_positions=one.protein.atom_positions + np.float32(1.5))
    relaxed = Relaxed(
        protein=protein,
        hydrogens=Hydrogens(residue=np.array([0, 0, 5, 11, 11]), names=NAMES, positions=np.arange(15.0).reshape(5, 3)),
        before=Flaws(residues=3, bonds=1, clashes=2, within=1),
        after=Flaws(residues=1, bonds=0, clashes=1, within=0),
        flawed=(7,),
        left_out=(5,),
        added=1,
        initial_energy=float("inf"),
        final_energy=-100.04,
        rmsd=0.21234,
        rmsd_held=0.1,
        freed=(6, 7),
        rounds=3,
        seconds=1.239,
        platform="CPU",
    )
    write_relaxed(directory, found, relaxed)
    return found, relaxed


@pytest.mark.parametrize("kind", ["pdb", "cif"])
def test_atoms_and_hydrogens_are_read_back(tmp_path: Path, kind: str) -> None:
    found, relaxed = written(tmp_path)
    chain = gemmi.read_structure(str(tmp_path / f"relaxed_model_1_ptm.{kind}"))[0][0]
    atoms = {(residue.seqid.num, atom.name): atom for residue in chain for atom in residue}
    hydrogens = {key: atom for key, atom in atoms.items() if atom.element == gemmi.Element("H")}
    assert list(hydrogens) == [(1, "H"), (1, "HA"), (6, "HB2"), (12, "HD11"), (12, "HH12")]
    for atom, place in zip(hydrogens.values(), relaxed.hydrogens.positions, strict=True):
        assert atom.pos.tolist() == pytest.approx(place.tolist(), abs=1e-3)
    for (number, _), atom in hydrogens.items():
        assert atom.b_iso == pytest.approx(found.plddt[number - 1], abs=0.01)
    ca = atoms[3, "CA"]
    assert ca.pos.tolist() == pytest.approx(relaxed.protein.atom_positions[2, ATOM_ORDER["CA"]].tolist(), abs=1e-3)
    assert len(atoms) - len(hydrogens) == int(relaxed.protein.atom_mask.sum())


@pytest.mark.parametrize("kind", ["pdb", "cif"])
def test_readers_are_told_what_was_done_and_what_is_left(tmp_path: Path, kind: str) -> None:
    written(tmp_path)
    text = " ".join((tmp_path / f"relaxed_model_1_ptm.{kind}").read_text().replace("REMARK   6", "").split())
    assert "OpenMM" in text
    assert "Impossible bonds, angles or clashes remain in 1 residue." in text
    assert "2 residues had to be placed again: bonds or overlaps could not be repaired in place." in text
    assert "1 residue had too few atoms to be relaxed." in text
    assert " ".join(NOTE.split()) in text


def test_names_of_four_letters_start_a_column_earlier(tmp_path: Path) -> None:
    written(tmp_path)
    lines = (tmp_path / "relaxed_model_1_ptm.pdb").read_text().splitlines()
    names = [line[12:16] for line in lines if line.startswith("ATOM") and line[76:78] == " H"]
    assert names == [" H  ", " HA ", " HB2", "HD11", "HH12"]


def test_a_prediction_is_read_as_it_was_written(tmp_path: Path) -> None:
    one = prediction()
    found, _ = written(tmp_path)
    protein = read_unrelaxed(tmp_path, found)
    assert (protein.aatype == one.protein.aatype).all()
    assert (protein.residue_index == one.protein.residue_index).all()
    assert (protein.atom_mask == one.protein.atom_mask).all()
    np.testing.assert_allclose(
        protein.atom_positions, one.protein.atom_positions * one.protein.atom_mask[..., None], atol=6e-4
    )


def test_metrics_have_alphafolds_keys_and_only_numbers_that_json_has(tmp_path: Path) -> None:
    found, relaxed = written(tmp_path)
    write_metrics(tmp_path, {found.name: relaxation_metrics(relaxed), "other": {"failed": "it is no fold"}})
    content = read_json(tmp_path / "relax_metrics.json")
    assert content["other"] == {"failed": "it is no fold"}
    mine = content[found.name]
    assert (mine["remaining_violations"], mine["remaining_violations_count"]) == ([7], 1)
    assert mine["violations_before"] == {"residues": 3, "bonds": 1, "clashes": 2, "within": 1}
    assert (mine["initial_energy_kcal_per_mol"], mine["final_energy_kcal_per_mol"]) == (None, -100.0)
    assert (mine["rmsd_angstrom"], mine["seconds"], mine["platform"]) == (0.212, 1.24, "CPU")


def test_metrics_count_only_while_their_structures_are_there(tmp_path: Path) -> None:
    found, relaxed = written(tmp_path)
    write_metrics(tmp_path, {found.name: relaxation_metrics(relaxed), "other": {"failed": "why"}})
    assert set(read_metrics(tmp_path)) == {found.name, "other"}
    (tmp_path / "relaxed_model_1_ptm.pdb").unlink()
    assert set(read_metrics(tmp_path)) == {"other"}
    for damaged in ("[1]", "{", '{"model_1_ptm": 3}'):
        (tmp_path / "relax_metrics.json").write_text(damaged)
        assert read_metrics(tmp_path) == {}


def test_relaxed_chains_keep_their_names_and_one_without_atoms_is_no_mix_up(tmp_path: Path) -> None:
    names = {"chain_ids": ("H", "LONG", "9"), "iptm": 0.5}
    write_prediction(tmp_path, prediction(structure=random_protein(12, chains=3), **names))
    found = read_finished(tmp_path, "model_1_ptm")
    assert found is not None
    protein = read_unrelaxed(tmp_path, found)
    assert protein.chain_index.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    relaxed = replace(written(tmp_path / "single")[1], protein=protein)
    write_relaxed(tmp_path, found, relaxed)
    assert [chain.name for chain in gemmi.read_structure(str(tmp_path / "relaxed_model_1_ptm.cif"))[0]] == [
        *("H", "LONG", "9")
    ]
    assert not (tmp_path / "relaxed_model_1_ptm.pdb").exists()  # which cannot hold the second one's name
    write_metrics(tmp_path, {"model_1_ptm": relaxation_metrics(relaxed)})
    assert "model_1_ptm" in read_metrics(tmp_path)
    write_prediction(tmp_path, prediction(structure=random_protein(12, chains=3, unknown=(4, 5, 6, 7)), **names))
    with pytest.raises(RelaxationError, match="one of its chains has no atoms"):
        read_unrelaxed(tmp_path, found)
