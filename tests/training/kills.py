"""Ends training runs by SIGKILL at random moments, and compares what they come to with unbroken ones."""

import os
import time
from pathlib import Path

import numpy as np

from tests.training.ended import Run, Unbroken
from tests.training.ranks import Ranks


def is_saving(run: Run) -> bool:
    """Whether there is a checkpoint that is not whole yet."""
    try:
        return any(name.endswith(".partial") for name in os.listdir(run.checkpoints))
    except FileNotFoundError:
        return False


class Killer:
    """Ends processes by SIGKILL at random moments, every third time while a checkpoint is written."""

    def __init__(self, kills: int, seconds: float, seed: int) -> None:
        self.left = kills
        self.during_a_save = 0
        self._seconds = seconds
        self._random = np.random.default_rng(seed)

    def moment(self) -> float:
        """Seconds until the next kill."""
        return float(self._random.uniform(0, self._seconds))

    def strike(self, run: Run, processes: Ranks) -> bool:
        """Kill them, all at once or one and then the others; False if they were done before."""
        if processes.wait(self.moment()):
            return False
        if self._random.random() < 1 / 3:
            while not is_saving(run):
                if processes.wait(0.0005):
                    return False
            time.sleep(self._random.uniform(0, 0.01))
        first = self._random.integers(len(processes.processes))
        if self._random.random() < 1 / 2:
            processes.kill([processes.processes[first]])
            time.sleep(self._random.uniform(0, 0.3))
        processes.kill(processes.processes)
        self.left -= 1
        self.during_a_save += is_saving(run)
        return True


def check_kills(kills: int, ranks: int, unbroken: Unbroken, directory: Path, seed: int = 0) -> Killer:
    """Run after run is killed and goes on until all kills are spent; each ends as the unbroken one did."""
    killer = Killer(kills, unbroken.seconds[ranks], seed)
    expected = unbroken.runs[ranks]
    number = 0
    while killer.left:
        number += 1
        run = Run(store=expected.store, directory=directory / f"run_{number}", options=expected.options)
        while True:
            with run.start(ranks) as processes:
                if killer.left and killer.strike(run, processes):
                    continue
                assert processes.finish() == [0] * ranks, processes.printed()
                break
        assert run.result() == expected.result(), f"run {number}"
        assert [path.name for path in run.checkpoints.iterdir() if path.name.startswith(".")] == [".lock"]
    return killer


def run_unbroken(store: Path, directory: Path, options: tuple[str, ...] = ()) -> Unbroken:
    """Run on one rank and on two, in processes that begin at once."""
    runs, seconds = {}, {}
    for ranks in (1, 2):
        runs[ranks] = Run(store=store, directory=directory / f"on_{ranks}", options=options)
        start = time.monotonic()
        runs[ranks].finish(ranks)
        seconds[ranks] = time.monotonic() - start
    return Unbroken(runs, seconds)
