"""One's own confident predictions become a training set, thinned, and marked as predictions."""

from dataclasses import replace
from pathlib import Path

import pytest

from data_pipeline.training_sets import clustering
from data_pipeline.training_sets.store import FeatureStore
from helixfold.cli.main import main
from helixfold.folding.prediction import Prediction
from helixfold.results.prediction import read_finished
from helixfold.training.finetune import distillation

SEQUENCES = {"one": "MKTAYIAKQRQISFVKSHFSRQ", "same": "MKTAYIAKQRQISFVKSHFSRQ", "two": "GSHMSLLNVPAGKDLPEDIYVV"}


@pytest.fixture(scope="module")
def predictions(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Predictions of three chains, of which two are equal, and of a complex."""
    folder = tmp_path_factory.mktemp("predictions")
    records = [f">{name}\n{each}\n" for name, each in SEQUENCES.items()]
    (folder / "in.fasta").write_text("".join([*records, ">pair\nMKTA:MKTA\n"]))
    command = ["predict", str(folder / "in.fasta"), "--weights", str(weights), "--output", str(folder / "out")]
    assert main([*command, "--device=cpu", "--models-to-relax", "none"]) == 0
    return folder / "out"


@pytest.mark.parametrize(("kept", "left"), [("one", "same"), ("same", "one")])
def test_of_equal_chains_the_most_confident_is_taken(
    kept: str, left: str, predictions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are equal in all else: one is made more confident when it is read."""
    monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)

    def read(folder: Path, best: str) -> Prediction | None:
        found = read_finished(folder, best)
        if found is None or folder.name != kept:
            return found
        return replace(found, plddt=found.plddt + 1)

    monkeypatch.setattr(distillation, "read_finished", read)
    selected = distillation.select_predictions(predictions, tmp_path, 0)
    assert (selected.selected, selected.left_out) == (2, 2)
    rows = [line.split("\t") for line in (tmp_path / "selected/selected.tsv").read_text().splitlines()[1:]]
    reasons = {name: reason for name, _, _, reason in rows}
    assert reasons == {kept: "", left: f"{kept} is similar and more confident", "two": "", "pair": "it has 2 chains"}


def test_confident_chains_are_taken_once(
    predictions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)
    command = ["features", "--from-predictions", str(predictions), "--output", str(tmp_path / "set"), "--workers", "1"]
    assert main([*command, "--min-plddt", "0"]) == 0
    store = FeatureStore.open(tmp_path / "set")
    names = {entry.name for entry in store.entries}
    (kept,) = names - {"two_A"}  # of the two equal ones
    assert kept in ("one_A", "same_A")
    assert all(entry.is_distillation for entry in store.entries)
    _, labels = store.load(kept)
    assert 0 < float(labels.confidence.mean()) < 1
    rows = [line.split("\t") for line in (tmp_path / "set/selected/selected.tsv").read_text().splitlines()[1:]]
    taken, reasons = ({row[0]: row[place] for row in rows} for place in (2, 3))
    left = ({"one", "same"} - {kept.removesuffix("_A")}).pop()
    assert taken == {"one": "yes", "same": "yes", "two": "yes", "pair": "no", left: "no"}
    assert reasons[left] == f"{kept.removesuffix('_A')} is similar and more confident"
    assert reasons["pair"] == "it has 2 chains"
    capsys.readouterr()
    assert main([*command[:-4], "--output", str(tmp_path / "none"), "--min-plddt", "100"]) == 2
    assert "is a single chain with a mean pLDDT of 100 or more" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_predictions_and_structures_exclude_each_other(predictions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["features", "--from-predictions", str(predictions), "--structures", str(predictions)]) == 2
    assert "--from-predictions cannot be combined with --structures" in capsys.readouterr().err
