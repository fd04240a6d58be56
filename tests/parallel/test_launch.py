"""Processes started from one command: who dies takes no others along, and is found out."""

import fcntl
import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from helixfold.parallel.launch import launch, on_ranks
from tests.parallel import worker_groups
from tests.support.interruptions import Event
from tests.training.ranks import Ranks


@pytest.mark.parametrize("dies", [0, pytest.param(1, marks=pytest.mark.long)])
def test_the_other_goes_on_when_a_process_is_killed(
    dies: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = launch(worker_groups.die_with_a_task, (tmp_path, dies), count=2, environment={"OWN": "yes"})
    lost = (tmp_path / "taken").read_text()
    assert sorted((tmp_path / "done").read_text() + lost) == worker_groups.TASKS
    assert f"process {dies} was ended from outside (signal 9)" in capsys.readouterr().err
    # The first process closes the list, if it is there.
    assert (run.code, run.unclosed is None) == ((-9, False) if dies == 0 else (1, True))
    if run.unclosed is not None:
        assert list(run.unclosed.failures()) == [lost]


def test_processes_whose_launching_process_is_killed_end_without_a_word(tmp_path: Path) -> None:
    lock, printed = tmp_path / "lock", tmp_path / "printed"
    with Ranks(1, printed, worker_groups.launch_two, lock) as parent:
        while not all((tmp_path / f"{rank}.began").exists() for rank in range(2)):
            assert not parent.wait(0.01), parent.printed()
        parent.kill(parent.processes)
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # waits until the last of them has ended
    assert printed.read_text() == ""


def test_a_process_that_fails_at_the_start_ends_the_run() -> None:
    run = launch(worker_groups.fail_at_the_start, None, count=2)
    assert (run.code, run.unclosed) == (2, None)


def start_two() -> None:
    launch(worker_groups.fail_at_the_start, None, count=2)


def start_one() -> None:
    on_ranks(1, str)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def terminate() -> None:
    raise SystemExit(143)  # as the handler of SIGTERM of a command does


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("strike", [interrupt, terminate])
@pytest.mark.parametrize(("start", "count"), [(start_two, 2), (start_one, 1)])
def test_a_signal_while_the_last_process_is_started_leaves_no_process(
    start: Callable[[], None], count: int, strike: Callable[[], None], is_after: bool, tmp_path: Path
) -> None:
    others = multiprocessing.active_children()
    event = Event(index=count, call="multiprocessing.process:BaseProcess.start", is_after=is_after)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background may ignore it
    try:
        with event.watched(tmp_path, strike), pytest.raises((KeyboardInterrupt, SystemExit)):
            start()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert [child for child in multiprocessing.active_children() if child not in others] == []
