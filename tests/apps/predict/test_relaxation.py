"""Predictions are relaxed as a step of `helixfold predict`: the best by default, and never at the price of a result."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from data_pipeline.io.errors import InputError
from data_pipeline.protein import Protein
from helixfold.apps.predict import relaxation
from helixfold.apps.predict.relaxation import is_done, predictions_to_relax, relax_predictions
from helixfold.cli.main import main
from helixfold.folding.prediction import Prediction
from helixfold.relax.problem import RelaxationError
from helixfold.results.prediction import ranked, read_finished, write_prediction, write_ranked
from tests.relax.perturbed import native, part, perturbed
from tests.relax.test_relaxation import EXAMPLES, needs_openmm
from tests.results.test_prediction import prediction

pytestmark = pytest.mark.usefixtures("undrawn")

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_downloaded_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "cache")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Two predictions of a small protein, of which the second is better."""
    small = part(native(EXAMPLES / "helical_hairpin.pdb"), slice(0, 10))
    for seed, (name, confidence) in enumerate([("model_1_ptm", 60.0), ("model_2_ptm", 70.0)]):
        write(tmp_path / "one", name, perturbed(small, off=0.2, clashes=0, seed=seed), confidence)
    return tmp_path / "one"


def write(directory: Path, name: str, protein: Protein, confidence: float) -> None:
    length = len(protein.aatype)
    plddt = np.full(length, confidence, np.float32)
    write_prediction(
        directory,
        prediction(
            name,
            confidence=confidence,
            structure=replace(protein, b_factors=plddt[:, None] * protein.atom_mask),
            plddt=plddt,
            pae=np.zeros((length, length), np.float32),
            distances=None,
        ),
    )


def order_of(directory: Path) -> list[Prediction]:
    found = [read_finished(directory, name) for name in ("model_1_ptm", "model_2_ptm")]
    return ranked([each for each in found if each is not None])


def metrics_in(directory: Path) -> Any:
    return json.loads((directory / "relax_metrics.json").read_text())


@needs_openmm
def test_the_best_is_relaxed_and_ranked_so(target: Path) -> None:
    said: list[str] = []
    relax_predictions(target, order_of(target), "best", CPU, said.append)
    write_ranked(target, order_of(target))
    assert set(metrics_in(target)) == {"model_2_ptm"}
    assert metrics_in(target)["model_2_ptm"]["remaining_violations_count"] == 0
    for kind in ("pdb", "cif"):
        content = (target / f"ranked_0.{kind}").read_bytes()
        assert content == (target / f"relaxed_model_2_ptm.{kind}").read_bytes()
        assert content != (target / f"unrelaxed_model_2_ptm.{kind}").read_bytes()
        assert (target / f"ranked_1.{kind}").read_bytes() == (target / f"unrelaxed_model_1_ptm.{kind}").read_bytes()
    assert len(said) == 1
    assert said[0].startswith("model_2_ptm: relaxed, ")
    assert "on the CPU" in said[0]


@needs_openmm
def test_only_what_is_missing_is_relaxed(target: Path) -> None:
    said: list[str] = []
    order = order_of(target)
    assert is_done(target, order, "none")
    assert not is_done(target, order, "best")
    relax_predictions(target, order, "best", CPU, said.append)
    assert is_done(target, order, "best")
    assert not is_done(target, order, "all")
    relax_predictions(target, order, "all", CPU, said.append)
    assert is_done(target, order, "all")
    assert [line.split(":")[0] for line in said] == ["model_2_ptm", "model_1_ptm"]
    (target / "relaxed_model_1_ptm.pdb").unlink()
    assert not is_done(target, order, "all")


def test_a_failure_keeps_the_predicted_structure_and_says_why(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(protein: Protein, **_: object) -> None:
        raise errors.pop()

    errors: list[Exception] = [MemoryError(), RelaxationError("it is in a heap")]
    monkeypatch.setattr(relaxation, "relax", failing)
    said: list[str] = []
    relax_predictions(target, order_of(target), "all", CPU, said.append)
    write_ranked(target, order_of(target))
    assert said == ["model_2_ptm: not relaxed: it is in a heap", "model_1_ptm: not relaxed: out of memory"]
    assert metrics_in(target) == {
        "model_2_ptm": {"failed": "it is in a heap"},
        "model_1_ptm": {"failed": "out of memory"},
    }
    assert (target / "ranked_0.pdb").read_bytes() == (target / "unrelaxed_model_2_ptm.pdb").read_bytes()
    assert is_done(target, order_of(target), "all")


@pytest.mark.parametrize(("moved", "freed", "kept"), [(1.9, 0.85, False), (2.1, 0.0, True), (0.1, 0.95, True)])
def test_a_relaxation_that_makes_another_structure_is_refused(
    target: Path, monkeypatch: pytest.MonkeyPatch, moved: float, freed: float, kept: bool
) -> None:
    def relaxed(protein: Protein, **_: object) -> SimpleNamespace:
        numbers = tuple(protein.residue_index[: round(freed * len(protein.aatype))].tolist())
        return SimpleNamespace(rmsd=3.14, rmsd_held=moved, freed=numbers)

    monkeypatch.setattr(relaxation, "relax", relaxed)
    monkeypatch.setattr(relaxation, "write_relaxed", lambda *_: None)
    monkeypatch.setattr(relaxation, "relaxation_metrics", lambda _: {})
    monkeypatch.setattr(relaxation, "summary", lambda _: "relaxed")
    said: list[str] = []
    relax_predictions(target, order_of(target), "best", CPU, said.append)
    assert ("failed" in metrics_in(target)["model_2_ptm"]) == kept
    assert said[0].startswith("model_2_ptm: not relaxed: its atoms would move by 3.1 A" if kept else "model_2_ptm: rel")


def test_without_a_word_the_best_is_relaxed_where_that_can_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaxation, "installed", lambda: True)
    assert predictions_to_relax(None, trained=True) == ("best", None)
    assert predictions_to_relax(None, trained=False) == ("none", None)
    assert predictions_to_relax("all", trained=False) == ("all", None)
    monkeypatch.setattr(relaxation, "installed", lambda: False)
    what, remark = predictions_to_relax(None, trained=True)
    assert what == "none"
    assert remark is not None
    assert "pip install 'helixfold[relax]'" in remark
    assert predictions_to_relax("none", trained=True) == ("none", None)
    with pytest.raises(InputError, match=r"--models-to-relax all needs OpenMM and PDBFixer, which are not installed"):
        predictions_to_relax("all", trained=True)


def test_what_an_untrained_model_folds_is_told_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(relaxation, "installed", lambda: True)
    fasta, output = tmp_path / "one.fasta", tmp_path / "out"
    fasta.write_text(">one\nMKTAYIAKQR\n")
    run = ["predict", str(fasta), "--output", str(output), "--device", "cpu", "--num-recycles", "0", "--models", "tiny"]
    assert main(run) == 0
    assert not (output / "one/relax_metrics.json").exists()
    capsys.readouterr()
    monkeypatch.setattr(relaxation, "relax", lambda *_, **__: (_ for _ in ()).throw(RelaxationError("it is in a heap")))
    assert main([*run, "--models-to-relax", "best"]) == 0
    assert "one: tiny: not relaxed: it is in a heap" in capsys.readouterr().out
    assert metrics_in(output / "one") == {"tiny": {"failed": "it is in a heap"}}
    assert (output / "one/ranked_0.pdb").read_bytes() == (output / "one/unrelaxed_tiny.pdb").read_bytes()
    assert "relaxation" in json.loads((output / "one/timings.json").read_text())["stages"]


def test_relaxed_structures_are_written_with_what_made_the_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[Any, ...]] = []
    monkeypatch.setattr(relaxation, "installed", lambda: True)
    for name, function in (
        ("relax", lambda *_, **__: SimpleNamespace(rmsd_held=0.1, freed=())),
        ("write_relaxed", lambda *arguments: written.append(arguments)),
        ("relaxation_metrics", lambda _: {"failed": "not done"}),
        ("summary", lambda _: "relaxed"),
    ):
        monkeypatch.setattr(relaxation, name, function)
    fasta, output = tmp_path / "one.fasta", tmp_path / "out"
    fasta.write_text(">one\nMKTAYIAKQR\n")
    run = ["predict", str(fasta), "--output", str(output), "--device", "cpu", "--num-recycles", "0", "--models", "tiny"]
    assert main([*run, "--models-to-relax", "best"]) == 0
    ((_, prediction, _, name, origin),) = written
    assert (prediction.name, name) == ("tiny", "one")
    assert origin.software["torch"] == torch.__version__
    assert (
        origin.parameters_digest
        == json.loads((output / "one/settings.json").read_text())["predictions"]["tiny"]["weights"]
    )


def test_relaxation_without_openmm_ends_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(relaxation, "installed", lambda: False)
    fasta, output = tmp_path / "one.fasta", tmp_path / "out"
    fasta.write_text(">one\nMKTAYIAKQR\n")
    assert (
        main(
            [
                "predict",
                str(fasta),
                "--output",
                str(output),
                "--device",
                "cpu",
                "--models-to-relax",
                "best",
                "--models",
                "tiny",
            ]
        )
        == 2
    )
    assert "needs OpenMM and PDBFixer" in capsys.readouterr().err
    assert not output.exists()
