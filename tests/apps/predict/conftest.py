"""Runs of small targets into one output directory."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import gemmi
import numpy as np
import pytest

from data_pipeline.search.alignment_server import AlignmentServer
from helixfold.apps.predict import postprocess
from tests.apps.predict.commands import predict
from tests.data_pipeline.search.mock_server import MockServer, mock_server
from tests.weights.written import write_tiny_without_templates

SEQUENCE = "MKTAYIAKQR"
Begin = Callable[..., None]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No downloaded weights, and nothing is drawn: that takes most of the time of a small target."""
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(
        postprocess, "STEPS", tuple(step for step in postprocess.STEPS if step[0] in ("ranking", "timings", "mark"))
    )
    monkeypatch.setattr("helixfold.apps.predict.lot.write_alignment", lambda *_: None)
    monkeypatch.setattr("helixfold.apps.predict.lot.write_coverage", lambda *_: None)


@pytest.fixture
def asks_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, undrawn: None) -> None:
    """No downloaded weights, no pauses before a server is asked again, and nothing is drawn."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr("data_pipeline.search.plan.AlignmentServer", partial(AlignmentServer, sleep=lambda _: None))


@pytest.fixture
def server() -> Iterator[MockServer]:
    with mock_server() as running:
        yield running


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    path = tmp_path / "one.fasta"
    path.write_text(f">one\n{SEQUENCE}\n")
    return path


class Runs:
    """Runs into one output directory: what each folded, and what it said."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.output, self.log, self.capsys = directory / "out", directory / "log", capsys
        self.target, self.code = self.output / "one", -1

    def __call__(self, *arguments: object) -> list[str]:
        self.log.write_text("")
        self.code = predict([*map(str, arguments), "--output", str(self.output)], self.log)
        captured = self.capsys.readouterr()
        self.out, self.err = captured.out, captured.err
        return [line.split()[1] for line in self.log.read_text().splitlines()]

    def order(self) -> list[str]:
        return json.loads((self.target / "ranking_debug.json").read_text())["order"]


@pytest.fixture
def without_templates(tmp_path: Path) -> Path:
    """Parameters of a tiny network that reads no templates."""
    return write_tiny_without_templates(tmp_path / "without_templates.safetensors")


@pytest.fixture
def runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Runs:
    return Runs(tmp_path, capsys)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def begin(runs: Runs, kept: Path) -> Begin:
    """Leave what a first run leaves; the tests of a file that begin with the same run copy it."""

    def first(fasta: Path, *options: str) -> None:
        copy = kept / "_".join([fasta.stem, *options])
        if copy.exists():
            shutil.copytree(copy, runs.output)
        else:
            assert runs(fasta, *options)
            assert runs.code == 0
            shutil.copytree(runs.output, copy)

    return first


def positions(path: Path) -> np.ndarray:
    (model,) = gemmi.read_structure(str(path))
    return np.array([atom.pos.tolist() for chain in model for residue in chain for atom in residue])
