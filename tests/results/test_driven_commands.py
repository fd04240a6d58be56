"""Commands that are interrupted within an item or between two of them go on to the files of an unbroken run."""

import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from helixfold.cli.main import main
from tests.apps.score.structure_files import write
from tests.support.interruptions import Event, interrupted, temporary_files
from tests.support.run_values import values

NETWORK = ["--num-recycles", "0", "--device", "cpu"]
FOLD, ADVANCE = "helixfold.apps.score.network:Network.fold", "helixfold.apps.design.designer:Designer.advance"
REPORT = "helixfold.results.driver:Run.report"
Command = tuple[list[str], str]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Command]:
    """Words of commands with at least two items, and what computes a part of an item."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number in range(3):
        write(tmp_path / "decoys" / f"d{number}.pdb", noise=number)
    (tmp_path / "one.fasta").write_text(">one\nMKTAYIAKQRQI\n")
    scan = ["scan", str(tmp_path / "one.fasta"), "--positions", "2", "--to", "AW", "--save-structures"]
    steps = ["--logits-steps", "2", "--soft-steps", "0", "--hard-steps", "1"]
    return {
        "score": (["score", str(tmp_path / "decoys"), "--model", "tiny", "--batch-size", "1", *NETWORK], FOLD),
        "scan": ([*scan, "--model", "tiny", "--batch-size", "1", *NETWORK], FOLD),
        "design": (
            ["design", "hallucination", "--length", "6", "--designs", "2", "--models", "tiny", *steps, *NETWORK],
            ADVANCE,
        ),
    }


def of_run(output: Path) -> object:
    """Values of a run, with the lines of its journal in any order."""
    found = values(output)
    return found | {name: sorted(map(repr, found[name])) for name in found if name.endswith(".jsonl")}


@pytest.fixture
def run(tmp_path: Path) -> Callable[[list[str], str], int]:
    def of(words: list[str], directory: str) -> int:
        with patch("helixfold.apps.design.run._SAVE_EVERY", -1.0):
            return main([*words, "--output", str(tmp_path / directory / "out")])

    return of


@pytest.mark.integration
@pytest.mark.parametrize("name", ["score", pytest.param("scan", marks=pytest.mark.long), "design"])
def test_an_interrupted_command_goes_on_to_the_same_files(
    name: str, commands: dict[str, Command], run: Callable[[list[str], str], int], tmp_path: Path
) -> None:
    words, part = commands[name]
    assert run(words, "whole") == 0
    for label, event in {
        "within": Event(index=2, call=part),
        "between": Event(index=1, call=REPORT, is_after=True),
        "writing": Event(index=6),
    }.items():
        output = tmp_path / label / "out"
        with interrupted(output, event):
            assert run(words, label) == 130
        assert not temporary_files(output)
        assert run(words, label) == 0
        assert of_run(output) == of_run(tmp_path / "whole" / "out"), label


@pytest.mark.integration
@pytest.mark.parametrize("name", ["score", "scan", "design"])
def test_programs_can_follow_a_command(
    name: str,
    commands: dict[str, Command],
    run: Callable[[list[str], str], int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words, log = commands[name][0], tmp_path / "log.txt"
    for _ in range(2):
        assert run([*words, "--progress", "json", "--log-file", str(log)], "followed") == 0
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
        last = lines[-1] if lines else None
        # A run without work has no target to report, or one that has no steps left.
        assert last is None or (last["done"], last["seconds_left"]) in ((last["total"], 0.0), (last["total"], None))
        assert [line["done"] for line in lines] == sorted(line["done"] for line in lines)
    assert f"-> {tmp_path / 'followed' / 'out'}" in log.read_text() or "designs.html" in log.read_text()
