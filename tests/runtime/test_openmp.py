"""While threads wait for a processor, more teams of OpenMP threads let all spin less."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from helixfold.runtime import openmp

# Seconds that threads have waited for a processor, at two readings a second, and the number of more teams after each.
_READINGS = [(5.0, 0), (5.01, 0), (5.2, 1), (5.4, 1), (5.41, 0), (5.9, 1), (5.1, 0)]


def _teams() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == openmp._TEAM]


def test_a_team_exists_while_threads_wait_for_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "_num_teams", lambda num_threads, num_processors: 1)
    teams = []

    def readings() -> Iterator[float]:
        for seconds, expected in _READINGS:
            yield seconds
            if not expected:
                for thread in _teams():
                    thread.join(10)
            teams.append(len(_teams()))

    openmp._watch(readings())
    assert teams == [expected for _, expected in _READINGS]


@pytest.mark.parametrize(("num_threads", "num_processors"), [(1, 1), (1, 2), (2, 2), (8, 8), (8, 64), (9, 64), (2, 64)])
def test_teams_are_just_enough_for_more_threads_than_processors(num_threads: int, num_processors: int) -> None:
    teams = openmp._num_teams(num_threads, num_processors)
    added = max(1, num_threads - 1)
    assert num_threads + teams * added > num_processors
    assert teams == 1 or num_threads + (teams - 1) * added <= num_processors


def test_waiting_for_a_processor_is_summed_over_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "_TASKS", tmp_path)
    assert openmp._seconds_without_processor() == 0
    for name, content in (("11", "900 2500000000 7\n"), ("12", "100 500000000 3\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(content)
    assert openmp._seconds_without_processor() == pytest.approx(3)


@pytest.mark.parametrize(
    ("variable", "num_threads", "waited", "starts"),
    [
        (None, 2, 0.1, True),
        ("OMP_WAIT_POLICY", 2, 0.1, False),
        ("KMP_BLOCKTIME", 2, 0.1, False),
        (None, 1, 0.1, False),
        (None, 2, 0.0, False),
    ],
)
def test_a_watch_starts_once_unless_there_is_nothing_to_decide(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, num_threads: int, waited: float, starts: bool
) -> None:
    watched = threading.Semaphore(0)
    monkeypatch.setattr(openmp, "_watch", lambda readings: watched.release())
    monkeypatch.setattr(openmp, "_seconds_without_processor", lambda: waited)
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    for name in openmp._USER_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "passive")
    openmp.spin_less_if_busy.cache_clear()
    openmp.spin_less_if_busy()
    openmp.spin_less_if_busy()
    assert watched.acquire(timeout=10 if starts else 0.1) == starts
    assert not watched.acquire(timeout=0.1)
    openmp.spin_less_if_busy.cache_clear()
