"""Shorten the spinning of OpenMP threads, with which PyTorch computes on a CPU, while other programs are busy."""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from data_pipeline.io.processors import available_processors

# Variables by which users choose how threads wait: of OpenMP itself, and of GNU's, LLVM's and Intel's libraries.
_USER_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
_TASKS = Path("/proc/self/task")  # Linux only
_INTERVAL = 0.5  # seconds between two readings
_TEAM = "openmp team"  # name of a thread
# Minimum seconds that the threads of this process wait for a processor per second, if other programs are busy. On idle
# processors it was at most 0.012.
_BUSY = 0.1


@cache
def spin_less_if_busy() -> None:
    """Watch from now on, in a thread, whether other programs are busy, and let OpenMP threads spin less while they are.

    A thread that spins continues at once, but takes processor time from the thread that it waits for if there are too
    few processors: a network may then take ten times as long. GNU's OpenMP library, which comes with PyTorch on Linux,
    lets threads spin much less while it manages more threads than there are processors (`GOMP_SPINCOUNT` in its
    manual). More teams of threads, which compute nothing, have this effect.

    This does nothing if the environment sets how threads wait, if PyTorch uses one thread, or if the system does not
    report how long threads wait for a processor.
    """
    chosen = any(name in os.environ for name in _USER_SETTINGS)
    if not chosen and torch.get_num_threads() > 1 and _seconds_without_processor() > 0:
        threading.Thread(target=_watch, args=(_readings(),), name="openmp watch", daemon=True).start()


def _readings() -> Iterator[float]:
    pause = threading.Event()
    while True:
        yield _seconds_without_processor()
        pause.wait(_INTERVAL)


def _watch(readings: Iterator[float]) -> None:
    """Keep more teams of OpenMP threads while readings of `_seconds_without_processor` grow fast."""
    before, not_busy = next(readings), None
    for seconds in readings:
        busy = seconds - before > _BUSY * _INTERVAL
        before = seconds
        if busy and not_busy is None:
            not_busy = threading.Event()
            for _ in range(_num_teams(torch.get_num_threads(), available_processors())):
                threading.Thread(target=_hold_team, args=(not_busy,), name=_TEAM, daemon=True).start()
        elif not busy and not_busy is not None:
            not_busy.set()
            not_busy = None


def _num_teams(num_threads: int, num_processors: int) -> int:
    """Return how many more teams make more threads than there are processors; a team shares its first thread."""
    return max(1, -(-(num_processors + 1 - num_threads) // max(1, num_threads - 1)))


def _hold_team(ended: threading.Event) -> None:
    """Let PyTorch create a team of threads for this thread, and keep it until `ended` is set."""
    torch.ones(2**20).add_(1)
    ended.wait()


def _seconds_without_processor() -> float:
    """Return the seconds that the threads of this process have waited for a processor, or 0 if unknown."""
    nanoseconds = 0
    for task in _TASKS.glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            nanoseconds += int(task.read_text().split()[1])
    return nanoseconds * 1e-9
