"""`helixfold relax` takes structures of any origin, and says one sentence about those that it cannot."""

import gzip
import json
from pathlib import Path

import gemmi
import numpy as np
import pytest

from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER
from helixfold.cli.main import main
from helixfold.results.lock import locked_directory
from tests.relax.test_relaxation import EXAMPLES, needs_openmm

pytestmark = needs_openmm


@pytest.fixture
def structure(tmp_path: Path) -> Path:
    """Two chains with names and numbers of their own, and a ligand."""
    model = gemmi.read_structure(str(EXAMPLES / "helix_short.pdb"))
    one = model[0][0]
    other = one.clone()
    one.name, other.name = "L", "H"
    for number, residue in enumerate(one):
        residue.seqid.num = 101 + number
    for residue in other:
        for atom in residue:
            atom.pos.x += 40
    model[0].add_chain(other)
    water = gemmi.Chain("W")
    residue = gemmi.Residue()
    residue.name, residue.seqid = "HOH", gemmi.SeqId("1")
    oxygen = gemmi.Atom()
    oxygen.name, oxygen.element = "O", gemmi.Element("O")
    residue.add_atom(oxygen)
    water.add_residue(residue)
    model[0].add_chain(water)
    path = tmp_path / "two.pdb"
    path.write_text(model.make_pdb_string())
    return path


def test_chains_keep_their_names_and_numbers(
    structure: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["relax", str(structure), "--output", str(out), "--device", "cpu"]) == 0
    assert sorted(path.name for path in out.glob("two*")) == ["two_relaxed.json", "two_relaxed.pdb"]
    before, after = read_structure(structure), read_structure(out / "two_relaxed.pdb")
    assert [chain.name for chain in after.chains] == ["L", "H"]
    for old, new in zip(before.chains, after.chains, strict=True):
        assert old.sequence == new.sequence
        assert (old.residue_numbers == new.residue_numbers).all()
        both = (old.atom_mask > 0) & (new.atom_mask > 0)
        assert np.linalg.norm((old.atom_positions - new.atom_positions)[both], axis=-1).max() < 1.5
    assert json.loads((out / "two_relaxed.json").read_text())["remaining_violations_count"] == 0
    assert "two.pdb: relaxed, " in capsys.readouterr().out


def test_mmcif_stays_mmcif_and_may_be_compressed(tmp_path: Path) -> None:
    model = gemmi.read_structure(str(EXAMPLES / "helix_short.pdb"))
    model.setup_entities()
    path = tmp_path / "helix.cif.gz"
    path.write_bytes(gzip.compress(model.make_mmcif_document().as_string().encode()))
    out = tmp_path / "out"
    assert main(["relax", str(path), "--output", str(out), "--device", "cpu"]) == 0
    again = read_structure(out / "helix_relaxed.cif")
    assert again.chains[0].sequence == read_structure(path).chains[0].sequence
    assert any(atom.element.name == "H" for atom in gemmi.read_structure(str(out / "helix_relaxed.cif"))[0][0][2])


def test_chains_of_mmcif_keep_names_that_a_pdb_file_cannot_hold(structure: Path, tmp_path: Path) -> None:
    model = gemmi.read_structure(str(structure))
    model.setup_entities()
    for chain, name in zip(model[0], ("L", "HEAV", "W"), strict=True):
        chain.name = name
    path = tmp_path / "two.cif"
    path.write_text(model.make_mmcif_document().as_string())
    assert main(["relax", str(path), "--output", str(tmp_path / "out"), "--device", "cpu"]) == 0
    before, after = read_structure(path), read_structure(tmp_path / "out" / "two_relaxed.cif")
    assert [chain.name for chain in after.chains] == ["L", "HEAV"]
    for old, new in zip(before.chains, after.chains, strict=True):
        assert (old.sequence, old.residue_numbers.tolist()) == (new.sequence, new.residue_numbers.tolist())
        assert new.atom_mask[-1, ATOM_ORDER["OXT"]] == 1
    for chain in gemmi.read_structure(str(tmp_path / "out" / "two_relaxed.cif"))[0]:
        assert {"H2", "H3"} <= {atom.name for atom in chain[0]}
        assert not {"H2", "H3"} & {atom.name for atom in chain[1]}


def test_one_that_fails_leaves_the_others_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heap = gemmi.read_structure(str(EXAMPLES / "helix_short.pdb"))
    for residue in heap[0][0]:
        for atom in residue:
            atom.pos.x = atom.pos.y = atom.pos.z = 0
    heap.write_pdb(str(tmp_path / "heap.pdb"))
    out = tmp_path / "out"
    run = ["relax", str(tmp_path / "heap.pdb"), str(EXAMPLES / "helix_short.pdb"), "--output", str(out)]
    assert main([*run, "--device", "cpu"]) == 1
    printed = capsys.readouterr()
    assert "heap.pdb: not relaxed: it does not have a fold that can be relaxed" in printed.err
    assert "1 of 2 structures could not be relaxed" in printed.err
    assert sorted(path.name for path in out.glob("*_relaxed*")) == [
        "helix_short_relaxed.json",
        "helix_short_relaxed.pdb",
    ]


def test_a_directory_that_another_run_writes_into_is_refused(
    structure: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked_directory(tmp_path / "out"):
        assert main(["relax", str(structure), "--output", str(tmp_path / "out")]) == 2
    assert "out: another run is writing there (process" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".helixfold.lock"]


def test_wrong_input_is_one_sentence_and_nothing_is_written(
    structure: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    text = tmp_path / "text.pdb"
    text.write_text("hello\n")
    water = tmp_path / "water.pdb"
    water.write_text("".join(line + "\n" for line in structure.read_text().splitlines() if "HOH" in line))
    twin = tmp_path / "twin" / "two.pdb"
    twin.parent.mkdir()
    twin.write_bytes(structure.read_bytes())
    (tmp_path / "full").mkdir()
    (tmp_path / "full/two_relaxed.pdb").touch()
    for arguments, words in (
        ([str(text)], "neither mmCIF"),
        ([str(tmp_path / "absent.pdb")], "absent.pdb"),
        ([str(water)], "it holds no protein"),
        ([str(structure), str(twin)], "have the same name"),
        ([str(structure), "--output", str(tmp_path / "full")], "exists already"),
        ([str(structure), "--max-rounds", "0"], "must be greater than 0"),
        ([str(structure), "--max-seconds", "nan"], "must be greater than 0"),
        ([str(structure), "--device", "toaster"], "unknown device"),
    ):
        assert main(["relax", "--output", str(out), *arguments]) == 2, words
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
        assert not out.exists()
    monkeypatch.setattr("helixfold.apps.predict.relaxation.installed", lambda: False)
    assert main(["relax", str(structure), "--output", str(out)]) == 2
    assert "pip install 'helixfold[relax]'" in capsys.readouterr().err
