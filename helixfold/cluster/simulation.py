"""Simulate a batch on a fleet of nodes, to compare schedules with each other and with what no schedule can beat."""

import heapq
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from helixfold.cluster.schedule import PoolForecast, Task


class Scheduler(Protocol):
    """The interface of schedules that can be simulated, such as `helixfold.cluster.schedule.Schedule`."""

    def next_task(self, name: str) -> Task | None: ...

    def end(self, task: Task, seconds: float | None = None) -> None: ...

    def found(self, target: int) -> None: ...

    def finish(self, target: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Pools with the seconds that targets really take there, and those that every task takes before it begins."""

    search: PoolForecast | None
    folding: Sequence[PoolForecast]
    seconds: Callable[[str, int], float]  # of a target, by pool
    startup: float

    @property
    def pools(self) -> list[PoolForecast]:
        """Return all pools."""
        return [*(() if self.search is None else (self.search,)), *self.folding]

    def least_seconds(self, residues: Sequence[int]) -> float:
        """Return the seconds below which no schedule can search and fold all targets, even without any startup.

        All searches, and all folding on the fastest pool of each target, are divided evenly among all slots; those that
        fit into some pools only, among the slots of these.
        """
        targets = range(len(residues))
        bounds = [0.0]
        if self.search is not None:
            bounds.append(sum(self.seconds(self.search.name, target) for target in targets) / self.search.slots)
        for above in {0, *(pool.longest for pool in self.folding)}:
            pools = [pool for pool in self.folding if pool.longest > above]
            inside = [target for target in targets if residues[target] > above]
            work = sum(min(self.seconds(pool.name, target) for pool in pools) for target in inside) if pools else 0.0
            bounds.append(work / max(1, sum(pool.slots for pool in pools)))
        return max(bounds)


def simulated_seconds(schedule: Scheduler, fleet: Fleet) -> float:
    """Return the seconds until the last target of a schedule is done."""
    now, number = 0.0, 0
    running: list[tuple[float, int, float, Task]] = []
    while True:
        for pool in fleet.pools:
            while (task := schedule.next_task(pool.name)) is not None:
                seconds = fleet.startup + sum(fleet.seconds(task.pool, target) for target in task.targets)
                heapq.heappush(running, (now + seconds, number, seconds, task))
                number += 1
        if not running:
            return now
        now, _, seconds, task = heapq.heappop(running)
        schedule.end(task, seconds)
        is_search = fleet.search is not None and task.pool == fleet.search.name
        for target in task.targets:
            (schedule.found if is_search else schedule.finish)(target)


@dataclass
class OneByOne:
    """A schedule that gives each target a task of its own: in the order of the list, or the longest first (LPT)."""

    residues: Sequence[int]
    fleet: Fleet
    longest_first: bool
    _running: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        order = sorted(range(len(self.residues)), key=self._rank)
        self._unsearched = deque(order if self.fleet.search is not None else [])
        # The next to take stands last.
        self._ready: list[tuple[int, int]] = []
        if self.fleet.search is None:
            self._ready = sorted(map(self._entry, order))

    def next_task(self, name: str) -> Task | None:
        """Return the next task of a pool; None if there is no free slot or nothing to do."""
        pool = next(pool for pool in self.fleet.pools if pool.name == name)
        if self._running.get(name, 0) >= pool.slots:
            return None
        if self.fleet.search is not None and name == self.fleet.search.name:
            target = self._unsearched.popleft() if self._unsearched else None
        else:
            target = self._take(pool)
        if target is None:
            return None
        self._running[name] = self._running.get(name, 0) + 1
        return Task(pool=name, targets=(target,), seconds=pool.seconds(self.residues[target]))

    def end(self, task: Task, seconds: float | None = None) -> None:
        """Free the slot of a task."""
        self._running[task.pool] -= 1

    def found(self, target: int) -> None:
        """Say that a target can be folded."""
        insort(self._ready, self._entry(target))

    def finish(self, target: int) -> None:
        """Say that a target is done."""

    def _rank(self, target: int) -> tuple[int, int]:
        return (-self.residues[target] if self.longest_first else 0), target

    def _entry(self, target: int) -> tuple[int, int]:
        rank, number = self._rank(target)
        return -rank, -number

    def _take(self, pool: PoolForecast) -> int | None:
        stop = len(self._ready)
        if self.longest_first:
            stop = bisect_right(self._ready, (pool.longest, 0))
        for place in range(stop - 1, -1, -1):
            target = -self._ready[place][1]
            if pool.fits(self.residues[target]):
                del self._ready[place]
                return target
        return None
