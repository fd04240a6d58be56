"""Runs that share tasks by claims: each task is done by one of them, and those of dead runs are taken over."""

from pathlib import Path

import pytest

from data_pipeline.io.claims import ClaimFiles, Claims
from helixfold.parallel import shared_tasks
from helixfold.parallel.shared_tasks import SharedTasks

NAMES = ["a", "b", "c", "d"]
LOTS = [[0, 1], [2, 3]]


class Run:
    """A run that shares the tasks: what it was told of those that it does not do."""

    def __init__(self, directory: Path, *, finished: set[int] | None = None) -> None:
        self.claims = Claims(ClaimFiles(directory))
        self.reported: dict[int, str | None] = {}
        self.tasks = SharedTasks(
            NAMES,
            self.claims,
            is_needed=lambda number: number not in (finished or set()),
            report=self.reported.__setitem__,
        )


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_tasks, "_POLL_INTERVAL", 0.0)


def test_a_task_is_done_by_one_run_and_reported_in_the_others(tmp_path: Path) -> None:
    first, second = Run(tmp_path), Run(tmp_path)
    mine = first.tasks.claimed(LOTS)
    assert next(mine) == [0, 1]
    other = second.tasks.claimed(LOTS)
    assert next(other) == [2, 3]
    first.tasks.end(0, None)
    first.tasks.end(1, "no luck")
    second.tasks.end(2, None)
    second.tasks.end(3, None)
    assert list(mine) == list(other) == []
    assert first.reported == {2: None, 3: None}
    assert second.reported == {0: None, 1: "no luck"}


def test_what_is_finished_is_not_done_again_and_what_is_in_good_hands_is_left(tmp_path: Path) -> None:
    first = Run(tmp_path)
    second = Run(tmp_path, finished={3})
    assert next(first.tasks.claimed([[0]])) == [0]
    mine = second.tasks.claimed(LOTS)
    assert next(mine) == [1]
    assert next(mine) == [2]
    assert second.reported == {3: None}
    first.claims.renew()
    assert list(mine) == []
    assert second.reported == {3: None, 0: None}


def test_tasks_of_a_dead_run_are_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Run(tmp_path), Run(tmp_path)
    assert next(first.tasks.claimed([[0, 3]])) == [0, 3]
    mine = second.tasks.claimed(LOTS)
    assert [next(mine), next(mine)] == [[1], [2]]
    monkeypatch.setattr("data_pipeline.io.claims._has_ended", lambda owner: True)
    assert next(mine) == [0]
    second.tasks.require_held(0)
    assert next(mine) == [3]
    assert list(mine) == []
    assert second.reported == {}


def test_a_silent_run_is_waited_for_until_it_is_seen_to_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Run(tmp_path), Run(tmp_path)
    assert next(first.tasks.claimed([[0]])) == [0]
    looks = iter([False] * 5)
    monkeypatch.setattr("data_pipeline.io.claims._has_ended", lambda owner: next(looks, True))
    # Its claim has the same time at every look: only one that was renewed meanwhile is in good hands.
    assert list(second.tasks.claimed([[0]])) == [[0]]
    assert second.reported == {}
