"""Several runs on one output directory: every target is predicted once, whichever of them are killed."""

import json
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from helixfold.results.lock import locked_directory
from tests.apps.predict.commands import BAD, batch, predict
from tests.apps.predict.conftest import Runs
from tests.apps.predict.test_interruptions import FOLD, in_process
from tests.support.interruptions import Event, Kill, redirect
from tests.training.ranks import SERVER


@pytest.fixture(autouse=True)
def no_downloaded_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _started(printed: Path, kill: Kill | None, log: Path, command: Sequence[str]) -> None:
    """One of several runs, of which one is killed."""
    redirect(printed)
    with nullcontext() if kill is None else kill.applied(log.parent):
        sys.exit(in_process(log, command))


def begun(log: Path) -> list[str]:
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def test_killed_runs_lose_their_targets_to_others_and_none_is_made_twice(tmp_path: Path) -> None:
    fasta, output = batch(tmp_path / "batch.fasta", 12, BAD), tmp_path / "output"
    command = [str(fasta), "--shared", "--output", str(output)]
    logs = [tmp_path / f"{number}.log" for number in range(4)]
    victim, kill = 1, Kill(signal.SIGKILL, Event(index=3, call=FOLD))
    running = [
        SERVER.Process(
            target=_started, args=(tmp_path / "printed.txt", kill if number == victim else None, log, command)
        )
        for number, log in enumerate(logs[:3])
    ]
    for process in running:
        process.start()
    running[victim].join(180)
    at_kill = {path.parent.name for path in output.glob("*/ranking_debug.json")}
    running.append(SERVER.Process(target=_started, args=(tmp_path / "printed.txt", None, logs[3], command)))
    running[3].start()
    for number, process in enumerate(running):
        process.join(180)
        expected = -signal.SIGKILL if number == victim else 1
        assert process.exitcode == expected, (tmp_path / "printed.txt").read_text()
    names = {f"t{number:02d}" for number in range(11)}
    assert {path.parent.name for path in output.glob("*/ranking_debug.json")} == names
    assert list(json.loads((output / "failures.json").read_text())) == [BAD]
    survivors = [begun(log) for number, log in enumerate(logs) if number != victim]
    made = [name for each in survivors for name in each if name != BAD]
    # Only what the killed run had begun and not finished is made again.
    assert len(set(made)) == len(made)
    again = set(made) & set(begun(logs[victim]))
    assert not again & at_kill
    assert len(again) <= 1
    # The failed target is tried again by runs that begin after it failed, as by any second run.
    assert 1 <= sum(each.count(BAD) for each in survivors) <= 2
    assert not list(output.rglob("*.partial"))
    assert not (output / ".claims").exists()


def test_a_shard_is_a_part_of_the_targets_and_shares_the_directory(tmp_path: Path, quick: None) -> None:
    fasta, log = batch(tmp_path / "batch.fasta", 4), tmp_path / "log"
    output = ["--output", str(tmp_path / "output")]
    (tmp_path / "output").mkdir()
    with locked_directory(tmp_path / "output", is_shared=True):  # as another shard has it
        assert predict([str(fasta), "--shard", "1/3", *output], log) == 0
    assert begun(log) == ["t01"]
    assert predict([str(fasta), "--shared", *output], log) == 0
    assert sorted(begun(log)) == ["t00", "t01", "t02", "t03"]
    # Nothing is left to do; results that are deleted are made again.
    assert predict([str(fasta), "--shared", *output], log) == 0
    (tmp_path / "output" / "t02" / "ranking_debug.json").unlink()
    assert predict([str(fasta), "--shared", "--overwrite", "--shard", "2/4", *output], log) == 0
    assert sorted(begun(log))[2:] == ["t02", "t02", "t03"]


def test_a_wrong_shard_is_refused(tmp_path: Path, runs: Runs, fasta: Path) -> None:
    runs(fasta, "--shard", "3/3")
    assert runs.code == 2
    assert "a shard must be i/n with i from 0 to n - 1, got '3/3'" in runs.err
    runs(fasta, "--shard", "1")
    assert "a shard must be i/n with i from 0 to n - 1, got '1'" in runs.err
    runs(fasta, "--shard", "0/2", "--dry-run")
    runs(fasta, "--shard", "1/2")
    assert runs.code == 2
    assert "shard 1/2 of 1 target is empty" in runs.err
