"""Scores and scans that are interrupted before or after any change of a file go on to those of an unbroken run."""

from collections.abc import Callable
from pathlib import Path

import pytest
from jaxtyping import config

from helixfold.cli.main import main
from tests.apps.score.structure_files import write
from tests.support.interruptions import State, check_interruptions, check_kills
from tests.support.run_values import values

pytestmark = pytest.mark.long

TINY = ["--model", "tiny", "--num-recycles", "0", "--device", "cpu", "--batch-size", "1"]
FOLD = "helixfold.apps.score.network:Network.fold"


@pytest.fixture(autouse=True)
def unchecked_shapes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(config, "jaxtyping_disable", True)


@pytest.fixture
def score(tmp_path: Path) -> Callable[..., Callable[[], int]]:
    for number in range(3):
        write(tmp_path / "decoys" / f"d{number}.pdb", noise=number)
    write(tmp_path / "native.pdb")

    def of(*options: str) -> Callable[[], int]:
        words = ["score", str(tmp_path / "decoys"), *TINY, "--reference", str(tmp_path / "native.pdb"), *options]
        return lambda: main([*words, "--save-structures", "--output", str(tmp_path / "out")])

    return of


@pytest.fixture
def scan(tmp_path: Path) -> Callable[..., Callable[[], int]]:
    (tmp_path / "one.fasta").write_text(">one\nMKTAYIAKQRQI\n")
    words = ["scan", str(tmp_path / "one.fasta"), *TINY, "--positions", "2", "--to", "AW", "--save-structures"]
    return lambda *options: lambda: main([*words, *options, "--output", str(tmp_path / "out")])


def of_run(output: Path) -> object:
    """Values of a run, with the lines of its journal in any order."""
    found = values(output)
    journals = {name: sorted(map(repr, found[name])) for name in found if name.endswith(".jsonl")}
    return found | journals


def test_scored_structures_survive_a_kill_at_every_step(
    score: Callable[..., Callable[[], int]], tmp_path: Path
) -> None:
    assert check_kills(tmp_path / "out", score(), of_run, work=FOLD) > 8


def test_ctrl_c_at_every_step_of_scoring_leaves_no_temporary_file(
    score: Callable[..., Callable[[], int]], tmp_path: Path
) -> None:
    check_interruptions(tmp_path / "out", score(), of_run, limit=40)


def test_scores_of_other_settings_are_never_taken_for_those_of_a_killed_run(
    score: Callable[..., Callable[[], int]], tmp_path: Path
) -> None:
    assert score("--seed", "3")() == 0
    other = State.of(tmp_path / "out", "other")
    State(label="empty", content={}, times={}).restore(tmp_path / "out")
    assert score()() == 0
    fresh = of_run(tmp_path / "out")
    other.restore(tmp_path / "out")
    check_kills(tmp_path / "out", score("--overwrite"), of_run)
    assert of_run(tmp_path / "out") == fresh


def test_scanned_mutants_survive_a_kill_at_every_step(scan: Callable[..., Callable[[], int]], tmp_path: Path) -> None:
    assert check_kills(tmp_path / "out", scan(), of_run) > 8


def test_ctrl_c_at_every_step_of_a_scan_leaves_no_temporary_file(
    scan: Callable[..., Callable[[], int]], tmp_path: Path
) -> None:
    check_interruptions(tmp_path / "out", scan(), of_run, limit=40)
