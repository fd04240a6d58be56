"""Restraints of a command reach the network, are recorded, and are refused where a model does not read them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import helixfold
from data_pipeline.io.config import RestraintKind
from helixfold.cli.main import main
from helixfold.model.presets import tiny
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.untrained import untrained_model

pytestmark = pytest.mark.usefixtures("undrawn")
SEQUENCE = "MKTAYIAKQRQISFVKSHFSRQ"


def write_weights(path: Path, kind: RestraintKind) -> Path:
    preset = replace(tiny(), name=f"tiny_{kind}", model=replace(tiny().model, restraints=kind))
    state = untrained_model(preset.model, 0).state_dict()
    save_checkpoint(path, state, preset.model.to_dict(), preset.without_model())
    return path


def test_a_target_is_predicted_with_its_restraints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, links = write_weights(tmp_path / "w.safetensors", "contacts"), tmp_path / "links.csv"
    (tmp_path / "a.fasta").write_text(f">a\n{SEQUENCE}\n")
    links.write_text("K2 K8 0.1\n5 16\n")
    words = ["predict", str(tmp_path / "a.fasta"), "--weights", str(weights), "--num-recycles", "0"]
    assert main([*words, "--restraints", str(links), "--output", str(tmp_path / "with")]) == 0
    assert main([*words, "--output", str(tmp_path / "without")]) == 0
    scores = json.loads(next((tmp_path / "with/a").glob("confidence_*.json")).read_text())
    assert any(note.startswith("RESTRAINTS: the structure satisfies ") for note in scores["notes"])
    assert "NO RESTRAINTS: 'tiny_contacts' reads distance restraints" in capsys.readouterr().err
    one, other = (next((tmp_path / name / "a").glob("ranked_0.pdb")).read_text() for name in ("with", "without"))
    assert one != other
    # The same from Python.
    with pytest.warns(UserWarning, match="RESTRAINTS"):
        (made,) = helixfold.predict(tmp_path / "a.fasta", weights=weights, restraints=links, num_recycles=0)
    made.save_pdb(tmp_path / "made.pdb")
    atoms = [
        [line[12:54] for line in text.splitlines() if line.startswith("ATOM")]
        for text in (one, (tmp_path / "made.pdb").read_text())
    ]
    np.testing.assert_array_equal(*atoms)
    # Changed restraints are other input.
    links.write_text("2 8 0.1\n")
    assert main([*words, "--restraints", str(links), "--output", str(tmp_path / "with")]) == 2
    assert "restraints" in capsys.readouterr().err


def test_each_target_of_a_batch_has_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = write_weights(tmp_path / "w.safetensors", "distances")
    (tmp_path / "ab.fasta").write_text(f">a\n{SEQUENCE}\n>b\n{SEQUENCE[:12]}\n")
    links = tmp_path / "links"
    links.mkdir()
    (links / "a.csv").write_text("2 8 12 3\n")
    words = ["predict", str(tmp_path / "ab.fasta"), "--weights", str(weights), "--num-recycles", "0"]
    words += ["--restraints", str(links), "--output", str(tmp_path / "out")]
    assert main(words) == 2
    assert "links, record 'b': has no file of this target, such as b.csv" in capsys.readouterr().err
    (links / "b.txt").write_text("2 18 DSS\n")
    assert main(words) == 2
    assert "b.txt, line 1: the chain has no residue 18; its residues are 1 to 12" in capsys.readouterr().err
    assert main([*words, "--skip-invalid"]) == 1
    assert list(json.loads((tmp_path / "out/failures.json").read_text())) == ["b"]
    (links / "b.txt").write_text("2 8 DSS\n")
    assert main(words) == 0
    for name in ("a", "b"):
        scores = json.loads(next((tmp_path / "out" / name).glob("confidence_*.json")).read_text())
        assert any("of 1" in note for note in scores["notes"])


@pytest.mark.parametrize(
    ("kind", "sequence", "problem"),
    [
        (None, SEQUENCE, "its restraints are contacts, and 'tiny' does not read restraints; pass --models alphalink_"),
        ("distances", SEQUENCE, "its restraints are contacts, and 'tiny_distances' reads distances; pass --models"),
        ("contacts", f"{SEQUENCE}:{SEQUENCE}", "restraints are for targets of one chain, and it has 2"),
    ],
)
def test_restraints_that_a_model_cannot_read_are_refused(
    kind: RestraintKind | None, sequence: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.fasta").write_text(f">a\n{sequence}\n")
    (tmp_path / "links.txt").write_text("2 8\n")
    words = ["predict", str(tmp_path / "a.fasta"), "--restraints", str(tmp_path / "links.txt")]
    if kind is None:
        words += ["--models", "tiny"]
    else:
        words += ["--weights", str(write_weights(tmp_path / "w.safetensors", kind))]
    assert main([*words, "--output", str(tmp_path / "out")]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
