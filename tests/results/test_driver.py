"""A run goes on after an item that failed, and shows what is done and how long the rest will take."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.io.errors import InputError, ServerUnavailableError
from data_pipeline.io.files import MovedDirectoryError
from helixfold.results import driver
from helixfold.results.driver import Run, driven
from helixfold.results.lock import locked_directory


def failures(output: Path) -> Any:
    path = output / "failures.json"
    return json.loads(path.read_text()) if path.exists() else None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InputError("a.pdb: it has no chain B"), "a.pdb: it has no chain B"),
        (RuntimeError("out of memory"), "RuntimeError: out of memory"),
        (KeyError("x"), "KeyError: 'x' (in test_driver.py, line "),
    ],
)
def test_a_failure_is_recorded_at_once_and_stops_no_other(
    error: Exception, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = []
    with driven(tmp_path / "out", "item", 3) as run:
        for name in "abc":
            with run.item(name):
                if name == "b":
                    raise error
                done.append(name)
            if name == "b":
                assert failures(tmp_path / "out")["b"].startswith(reason)
    assert (done, run.exit_code, run.done) == (["a", "c"], 1, 3)
    assert failures(tmp_path / "out").keys() == {"b"}
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"b: failed: {reason}")
    assert last == f"helixfold: 1 failed, see {tmp_path / 'out' / 'failures.json'}"


def test_a_run_without_failures_removes_those_of_an_earlier_one(tmp_path: Path) -> None:
    for fails in (True, False):
        with driven(tmp_path, "item", 1) as run, run.item("a"):
            if fails:
                raise ServerUnavailableError("no answer")
        assert run.exit_code == (3 if fails else 0)
        assert failures(tmp_path) == ({"a": "ServerUnavailableError: no answer"} if fails else None)


def test_an_interruption_ends_the_run_and_keeps_the_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt), driven(tmp_path, "item", 3) as run:
        run.fail("a", "it is torn")
        with run.item("b"):
            raise KeyboardInterrupt
    assert failures(tmp_path) == {"a": "it is torn"}
    assert capsys.readouterr().err.endswith("helixfold: 1 of 3 items done\n")
    with driven(tmp_path, "item", 0):  # the lock is free again
        pass


def test_a_directory_has_one_run_and_one_that_is_moved_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    with (
        locked_directory(output),
        pytest.raises(InputError, match="another run is writing there"),
        driven(output, "x", 1),
    ):
        pass
    with pytest.raises(MovedDirectoryError), driven(output, "item", 2) as run:
        with run.item("a"):
            output.rename(tmp_path / "elsewhere")
            raise OSError("cannot be written")
        pytest.fail("it goes on")
    assert not capsys.readouterr().err  # it is not the item that failed


Printed = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Printed:
    """The JSON objects of a run that takes ten seconds longer whenever the clock is read."""
    seconds = iter(range(10, 10_000, 10))
    monkeypatch.setattr(driver.time, "monotonic", lambda: float(next(seconds)))
    return lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]


def test_json_has_what_is_done_the_time_and_the_seconds_left(tmp_path: Path, printed: Printed) -> None:
    run = Run(tmp_path, "step", 10, "json")
    run.skip(2)  # of an earlier run: they took no time of this one
    with run.item("a", 4):
        run.report("a", "half", 2)
        run.skip()
    with run.item("b", 4):
        raise RuntimeError("too long")
    found = printed()
    times = [datetime.fromisoformat(each.pop("time")) for each in found]
    assert times == sorted(times)
    assert all(each.tzinfo is not None for each in times)
    assert found == [
        # Two steps in ten seconds leave 30 for six.
        {"target": "a", "stage": "half", "done": 4, "total": 10, "seconds": 10.0, "seconds_left": 30.0},
        # Three steps took 20.
        {"target": "a", "stage": "finished", "done": 6, "total": 10, "seconds": 10.0, "seconds_left": 26.7},
        {"target": "b", "stage": "failed", "done": 10, "total": 10, "seconds": 10.0, "seconds_left": 0.0},
    ]


def test_an_item_may_be_done_in_several_blocks(tmp_path: Path, printed: Printed) -> None:
    run = Run(tmp_path, "structure", 2, "json")
    for name in "ab":
        with run.item(name, continues=True):
            if name == "a":
                raise InputError("it is torn")
    assert [each["target"] for each in printed()] == ["a"]
    with run.item("b"):
        pass
    assert [(each["target"], each["stage"], each["done"]) for each in printed()] == [("b", "finished", 2)]
