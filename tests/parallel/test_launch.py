"""Processes started from one command: who dies takes no others along, and is found out."""

import fcntl
from pathlib import Path

import pytest

from helixfold.parallel.launch import launch
from tests.parallel import worker_groups
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
