"""A batch that is killed goes on: what is there stays, what is missing is made, and no file is half written."""

import errno
import fcntl
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from helixfold.interruption import INTERRUPTED
from helixfold.predict import postprocess
from helixfold.predict.lock import _lock
from tests.predict.files import without_command
from tests.predict.kills import BAD, assert_whole, finished, predict, started

# Everything but the times in these is the same for every run.
_TIMED = ("timings.json", "report.html", "index.html", ".helixfold.lock", ".zip")


@pytest.fixture(autouse=True)
def no_downloaded_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def batch(path: Path, count: int, *others: str) -> Path:
    random = np.random.default_rng(0)
    names = [*(f"t{number:02d}" for number in range(count - len(others))), *others]
    chains = ["".join(random.choice(list("ACDEFGHIKLMNPQRSTVWY"), 8 + number % 7)) for number in range(count)]
    path.write_text("".join(f">{name}\n{chain}\n" for name, chain in zip(names, chains, strict=True)))
    return path


def until(happened: object, process: object, seconds: float = 60) -> None:
    """Wait for a file to be there, as long as the process lives."""
    end = time.monotonic() + seconds
    while not happened() and process.is_alive():  # type: ignore[operator, attr-defined]
        assert time.monotonic() < end
        time.sleep(0.01)


def contents(output: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(output)): without_command(path)
        for path in sorted(output.rglob("*"))
        if path.is_file() and not path.name.endswith(_TIMED)
    }


def killed_and_finished(tmp_path: Path, *, targets: int, kills: int, longest: float, seed: int = 0) -> int:
    """Kill a batch again and again at random moments, a new one whenever one has finished; how many have."""
    random, rounds, killed = np.random.default_rng(seed), 0, 0
    fasta = batch(tmp_path / "batch.fasta", targets)
    predict([str(fasta), "--num-seeds", "2", "--zip", "--output", str(tmp_path / "whole")], tmp_path / "whole.log")
    expected = contents(tmp_path / "whole")
    while killed < kills or rounds == 0 or (output / "failures.json").exists():
        output, log, printed = (tmp_path / f"{rounds}{suffix}" for suffix in ("", ".log", ".txt"))
        log.touch()
        output.mkdir()
        there: dict[Path, tuple[int, int]] = {}
        while True:
            before = log.read_text().splitlines()
            done = {(path.parent.name, path.stem.removeprefix("unrelaxed_")) for path in there if path.suffix == ".pdb"}
            process = started([str(fasta), "--num-seeds", "2", "--zip", "--output", str(output)], log, printed)
            if killed < kills:
                until(lambda: len(log.read_text().splitlines()) > len(before), process)  # noqa: B023  # called at once
                process.join(float(random.uniform(0, longest)))
                if process.exitcode is None:
                    os.kill(process.pid, signal.SIGKILL)
                    killed += 1
            process.join(300)
            # Nothing that was there was written or made again.
            now = finished(output)
            assert {path: now.get(path) for path in there} == there
            begun = {(target, name) for target, name in map(str.split, log.read_text().splitlines()[len(before) :])}
            assert not begun & done
            assert_whole(output)
            there = now
            if process.exitcode == 0:
                break
            assert process.exitcode == -signal.SIGKILL, printed.read_text()
        assert contents(output) == expected
        assert not [path for path in output.rglob("*") if path.name.endswith(".partial")]
        rounds += 1
    return rounds


def test_three_kills_leave_what_is_finished_and_no_half_file(tmp_path: Path) -> None:
    assert killed_and_finished(tmp_path, targets=2, kills=3, longest=1.5) > 0


@pytest.mark.long
def test_fifty_kills_of_a_batch_of_twenty(tmp_path: Path) -> None:
    rounds = killed_and_finished(tmp_path, targets=20, kills=50, longest=6.0)
    print(f"50 kills in {rounds} batches of 20 targets")


def test_one_bad_target_of_eight_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is drawn takes most of the time, and is not what this is about.
    monkeypatch.setattr("helixfold.predict.postprocess.STEPS", ())
    monkeypatch.setattr("helixfold.predict.target.write_alignment", lambda *_: None)
    fasta, output = batch(tmp_path / "batch.fasta", 8, BAD), tmp_path / "out"
    assert predict([str(fasta), "--output", str(output)], tmp_path / "log") == 1
    assert json.loads((output / "failures.json").read_text()) == {BAD: "RuntimeError: the chain is broken"}
    assert len(list(output.glob("t*/unrelaxed_tiny.pdb"))) == 7


def test_a_full_disk_fails_targets_one_by_one_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [step for step in postprocess.STEPS if step[0] in ("ranking", "mark")]
    monkeypatch.setattr(postprocess, "STEPS", steps)  # what is drawn takes most of the time
    monkeypatch.setattr("helixfold.predict.target.write_alignment", lambda *_: None)
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


def test_the_keyboard_ends_a_batch_at_once_and_cleanly(tmp_path: Path) -> None:
    fasta, output, log, printed = batch(tmp_path / "batch.fasta", 4), *(tmp_path / name for name in ("out", "log", "p"))
    log.touch()
    process = started([str(fasta), "--output", str(output)], log, printed)
    until((output / "t00" / "ranking_debug.json").exists, process)
    until(lambda: len(log.read_text().splitlines()) > 1, process)
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == INTERRUPTED
    told = printed.read_text()
    assert "1 of 4 targets done\n" in told
    # Not the last words of the file: both streams go there, and one of them is written out at the end.
    assert "helixfold: interrupted; run the same command again to go on\n" in told
    assert "Traceback" not in told
    assert_whole(output)
    assert not [path for path in output.rglob("*") if path.name.endswith(".partial")]


def test_a_second_run_in_the_same_directory_is_refused_and_a_killed_one_holds_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fasta, output, log, printed = batch(tmp_path / "batch.fasta", 9), *(tmp_path / name for name in ("out", "log", "p"))
    log.touch()
    process = started([str(fasta), "--output", str(output)], log, printed)
    until(log.read_text, process)
    assert predict([str(fasta), "--output", str(output)], tmp_path / "other") == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith(f"helixfold: error: {output}: another run is writing there (process {process.pid} on ")
    assert not (tmp_path / "other").exists()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    (output / "t00" / ".ranked_0.pdb.0123abcd.partial").write_text("half")
    one = batch(tmp_path / "one.fasta", 1)
    assert predict([str(one), "--output", str(output)], log) == 0
    assert not list(output.glob("*/.*.partial"))
