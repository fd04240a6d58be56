"""A batch that is killed goes on: what is there stays, what is missing is made, and no file is half written."""

import errno
import fcntl
import json
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import config

from helixfold.apps.predict import postprocess
from helixfold.results.lock import _lock
from helixfold.runtime.interruption import INTERRUPTED
from tests.apps.predict.commands import BAD, batch, finished, predict
from tests.support.interruptions import Event, Kill, end, temporary_files
from tests.support.run_values import values

FOLD = "helixfold.folding.planned:fold"


@pytest.fixture(autouse=True)
def no_downloaded_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def in_process(log: Path, arguments: Sequence[str]) -> int:
    """The command in a process of its own; shapes are checked where it is run in the tests' own process."""
    config.update("jaxtyping_disable", True)
    return predict(arguments, log)


def killed_and_finished(tmp_path: Path, *, targets: int, kills: int, seed: int = 0) -> int:
    """Kill a batch again and again at random events, a new one whenever one has finished; return how many have."""
    random, batches, killed = np.random.default_rng(seed), 0, 0
    fasta = batch(tmp_path / "batch.fasta", targets)
    words = [str(fasta), "--num-seeds", "2", "--zip", "--output"]
    whole = tmp_path / "whole" / "out"
    changes = end(partial(in_process, tmp_path / "whole.log"), [*words, str(whole)], whole).events
    expected = values(whole)
    while killed < kills or batches == 0:
        output, log = tmp_path / str(batches) / "out", tmp_path / f"{batches}.log"
        output.mkdir(parents=True)
        log.touch()
        there: dict[Path, tuple[int, int]] = {}
        while True:
            before = log.read_text().splitlines()
            done = {(path.parent.name, path.stem.removeprefix("unrelaxed_")) for path in there if path.suffix == ".pdb"}
            fold = Event(index=int(random.integers(1, 4)), call=FOLD, is_after=bool(random.integers(2)))
            change = Event(index=int(random.integers(1, changes // 2)))
            kill = Kill(signal.SIGKILL, fold if random.random() < 0.3 else change) if killed < kills else None
            ended = end(partial(in_process, log), [*words, str(output)], output, kill)
            # Nothing that was there was written or made again.
            now = finished(output)
            assert {path: now.get(path) for path in there} == there
            begun = {(target, name) for target, name in map(str.split, log.read_text().splitlines()[len(before) :])}
            assert not begun & done
            values(output)
            there = now
            if ended.code == 0:
                break
            assert ended.code == -signal.SIGKILL, ended.printed
            killed += 1
        assert values(output) == expected
        assert not temporary_files(output)
        batches += 1
    return batches


@pytest.mark.integration
def test_three_kills_leave_what_is_finished_and_no_half_file(tmp_path: Path) -> None:
    assert killed_and_finished(tmp_path, targets=2, kills=3) > 0


@pytest.mark.long
def test_fifty_kills_of_a_batch_of_twenty(tmp_path: Path) -> None:
    batches = killed_and_finished(tmp_path, targets=20, kills=50)
    print(f"50 kills in {batches} batches of 20 targets")


def test_one_bad_target_of_eight_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is drawn takes most of the time, and is not what this is about.
    monkeypatch.setattr("helixfold.apps.predict.postprocess.STEPS", ())
    monkeypatch.setattr("helixfold.apps.predict.lot.write_alignment", lambda *_: None)
    monkeypatch.setattr("helixfold.apps.predict.lot.write_coverage", lambda *_: None)
    fasta, output = batch(tmp_path / "batch.fasta", 8, BAD), tmp_path / "out"
    assert predict([str(fasta), "--output", str(output)], tmp_path / "log") == 1
    assert json.loads((output / "failures.json").read_text()) == {BAD: "RuntimeError: the chain is broken"}
    assert len(list(output.glob("t*/unrelaxed_tiny.pdb"))) == 7


def test_a_full_disk_fails_targets_one_by_one_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [step for step in postprocess.STEPS if step[0] in ("ranking", "mark")]
    monkeypatch.setattr(postprocess, "STEPS", steps)  # what is drawn takes most of the time
    monkeypatch.setattr("helixfold.apps.predict.lot.write_alignment", lambda *_: None)
    monkeypatch.setattr("helixfold.apps.predict.lot.write_coverage", lambda *_: None)
    fasta, output = batch(tmp_path / "batch.fasta", 3), tmp_path / "out"
    touch = Path.touch

    def full(path: Path, *, exist_ok: bool = True) -> None:
        """There is room for the second target only."""
        if output in path.parents and path.parent.name != "t01":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        touch(path, exist_ok=exist_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "touch", full)
        assert predict([str(fasta), "--output", str(output)], tmp_path / "log") == 1
    said = "No space left on device; free some space, then run the same command again"
    lines = capsys.readouterr().err.splitlines()
    for name in ("t00", "t02"):
        (line,) = (line for line in lines if line.startswith(f"{name}: failed"))
        assert line.startswith(f"{name}: failed: DiskFullError: {output / name / 'settings.json'}: {said} [")
    assert f"helixfold: {output / 'failures.json'}: not written: {said}" in lines
    assert [path.parent.name for path in output.glob("*/ranking_debug.json")] == ["t01"]
    before = finished(output)
    assert predict([str(fasta), "--output", str(output)], tmp_path / "log") == 0
    assert len(list(output.glob("*/ranking_debug.json"))) == 3
    assert {path: finished(output).get(path) for path in before} == before


def test_a_lock_on_a_full_disk_is_held_without_a_name() -> None:
    with open("/dev/full", "a+") as file:
        _lock(Path("out"), file, fcntl.LOCK_EX)


@pytest.mark.integration
def test_ctrl_c_ends_a_batch_at_once_and_cleanly(tmp_path: Path) -> None:
    fasta, output = batch(tmp_path / "batch.fasta", 4), tmp_path / "out"
    kill = Kill(signal.SIGINT, Event(index=2, call=FOLD))
    ended = end(partial(in_process, tmp_path / "log"), [str(fasta), "--shared", "--output", str(output)], output, kill)
    assert ended.code == INTERRUPTED
    assert "1 of 4 targets done\n" in ended.printed
    # Not the last words of the file: both streams go there, and one of them is written out at the end.
    assert "helixfold: interrupted; run the same command again to resume\n" in ended.printed
    assert "Traceback" not in ended.printed
    values(output)
    assert not temporary_files(output)


@pytest.mark.integration
def test_a_second_run_in_the_same_directory_is_refused_and_a_killed_one_holds_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fasta, output = batch(tmp_path / "batch.fasta", 2), tmp_path / "out"
    second: list[int] = []

    def run_again() -> None:
        second.append(predict([str(fasta), "--output", str(output)], tmp_path / "other"))

    with Event(index=1, call=FOLD).watched(output, run_again):
        assert predict([str(fasta), "--output", str(output)], tmp_path / "log") == 0
    assert second == [2]
    message = next(line for line in capsys.readouterr().err.splitlines() if "another run is writing" in line)
    assert message.startswith(f"helixfold: error: {output}: another run is writing there (process {os.getpid()} on ")
    assert not (tmp_path / "other").exists()
    kill = Kill(signal.SIGKILL, Event(index=1, call=FOLD))
    words = [str(batch(tmp_path / "three.fasta", 3)), "--output", str(output)]
    assert end(partial(in_process, tmp_path / "log"), words, output, kill).code == -signal.SIGKILL
    (output / "t00" / ".ranked_0.pdb.0123abcd.partial").write_text("half")
    assert predict(words, tmp_path / "log") == 0
    assert not temporary_files(output)
