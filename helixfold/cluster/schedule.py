"""Decide what the pools of a cluster do next: which targets are searched and folded where, packed into which tasks.

This is bookkeeping alone, without clock, files or engine. Targets are called by their numbers.
"""

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

# A target that ran out of memory, or whose node was lost, is tried again so often.
MOST_RETRIES = 2
# Before any task has shown how fast a pool is, tasks are this share of their usual length; near the end of a batch, or
# while few targets are ready, they may be as short as the second share.
_FIRST_SHARE, _LEAST_SHARE = 0.25, 0.05
# Weight of all earlier tasks beside the newest in a pool's pace.
_KEPT = 0.7


@dataclass(frozen=True, kw_only=True)
class PoolForecast:
    """The forecast of a pool: how many tasks it runs at a time, which targets fit, and how long they take."""

    name: str
    slots: int
    longest: int  # residues of the longest target that fits into its memory
    seconds: Callable[[int], float]  # of a target of so many residues
    task_seconds: float  # the usual length of a task

    def fits(self, residues: int) -> bool:
        """Return whether a target of so many residues fits into the memory of a worker."""
        return residues <= self.longest


@dataclass(frozen=True, kw_only=True)
class Task:
    """Targets that one worker of a pool takes one after the other, and their forecast in seconds."""

    pool: str
    targets: tuple[int, ...]
    seconds: float


@dataclass
class _Pool:
    """A pool with what was seen of it: tasks that run, and the seconds that tasks took and were forecast to take."""

    forecast: PoolForecast
    running: int = 0
    taken: float = 0.0
    expected: float = 0.0

    @property
    def pace(self) -> float:
        """Return the seconds that tasks take for each second of the forecast; 1 before any has ended."""
        return self.taken / self.expected if self.expected > 0 and self.taken > 0 else 1.0

    def measure(self, task: Task, seconds: float) -> None:
        """Learn from a task that has ended."""
        self.taken = _KEPT * self.taken + seconds
        self.expected = _KEPT * self.expected + task.seconds


class _Queue:
    """Targets that wait, by length; those of one group (equal sequences) are neighbours and are taken together."""

    def __init__(self, residues: Sequence[int], groups: Sequence[int], pools: Sequence[PoolForecast]) -> None:
        self._residues, self._groups = residues, groups
        self._entries: list[tuple[int, int, int]] = []
        self._pools = pools
        self.work = dict.fromkeys((pool.name for pool in pools), 0.0)  # seconds of all that wait, by pool

    def __len__(self) -> int:
        return len(self._entries)

    def fill(self, targets: Collection[int]) -> None:
        """Add many targets."""
        self._entries = sorted([*self._entries, *map(self._entry, targets)])
        self._count(targets, 1)

    def add(self, target: int) -> None:
        """Add a target."""
        insort(self._entries, self._entry(target))
        self._count([target], 1)

    def take(self, pool: PoolForecast, seconds: float) -> list[int]:
        """Take the longest targets that fit into a pool, until they make up so many seconds of its forecast."""
        stop = bisect_right(self._entries, (pool.longest, math.inf, math.inf))
        start, total = stop, 0.0
        while start > 0 and (total < seconds or self._is_of_group(start)):
            start -= 1
            total += pool.seconds(self._entries[start][0])
        taken = [target for _, _, target in reversed(self._entries[start:stop])]
        del self._entries[start:stop]
        self._count(taken, -1)
        return taken

    def _is_of_group(self, start: int) -> bool:
        """Return whether the next target to take is of the same group as the last one that was taken."""
        return start < len(self._entries) and self._entries[start - 1][:2] == self._entries[start][:2]

    def _entry(self, target: int) -> tuple[int, int, int]:
        return self._residues[target], self._groups[target], target

    def _count(self, targets: Collection[int], sign: int) -> None:
        for pool in self._pools:
            self.work[pool.name] += sign * sum(pool.seconds(self._residues[target]) for target in targets)


@dataclass
class Schedule:
    """The targets of a batch on their way through the pools.

    `groups` are equal for targets of equal sequence. Those in `searched` have features already; all have if there is no
    pool that searches. Targets that fit into no pool have failed from the beginning.
    """

    residues: Sequence[int]
    groups: Sequence[int]
    search: PoolForecast | None
    folding: Sequence[PoolForecast]
    searched: Collection[int] = ()
    left_out: Collection[int] = ()  # which are finished already
    failures: dict[int, str] = field(default_factory=dict)  # why targets failed
    finished: int = 0

    def __post_init__(self) -> None:
        pools = [*(() if self.search is None else (self.search,)), *self.folding]
        self._pools = {pool.name: _Pool(pool) for pool in pools}
        searched, left_out = set(self.searched), set(self.left_out)
        longest = self.longest
        self._tries: dict[int, int] = {}
        # Targets that are tried again in tasks of their own, with the residues that a pool must have more room than.
        self._alone: dict[int, int] = {}
        search_pools = () if self.search is None else (self.search,)
        self._unsearched = _Queue(self.residues, self.groups, (*search_pools, *self.folding))
        self._ready = _Queue(self.residues, range(len(self.residues)), self.folding)
        remaining = [target for target in range(len(self.residues)) if target not in left_out]
        fitting = [target for target in remaining if self.residues[target] <= longest]
        self.unfit = [target for target in remaining if self.residues[target] > longest]
        ready = {target for target in fitting if self.search is None or target in searched}
        self._ready.fill(ready)
        self._unsearched.fill([target for target in fitting if target not in ready])
        self._open = set(fitting)

    @property
    def longest(self) -> int:
        """Return the residues of the longest target that fits into any pool."""
        return max((pool.longest for pool in self.folding), default=0)

    @property
    def finished_before(self) -> int:
        """Return how many targets were finished from the beginning."""
        return len(self.left_out)

    @property
    def is_over(self) -> bool:
        """Return whether all targets have finished or failed."""
        return not self._open

    @property
    def waiting(self) -> dict[str, int]:
        """Return how many targets wait for a search, and for a worker that folds them."""
        return {"search": len(self._unsearched), "folding": len(self._ready) + len(self._alone)}

    @property
    def remaining(self) -> int:
        """Return how many targets have neither finished nor failed."""
        return len(self._open)

    @property
    def search_seconds(self) -> float:
        """Return the forecast of all searches that wait, one after the other."""
        return 0.0 if self.search is None else self._unsearched.work[self.search.name]

    @property
    def open_targets(self) -> Collection[int]:
        """Return the targets that have neither finished nor failed."""
        return self._open

    def running(self, pool: str) -> int:
        """Return how many tasks a pool has been given that have not ended."""
        return self._pools[pool].running

    def pace(self, pool: str) -> float | None:
        """Return the seconds that tasks of a pool take for each second of the forecast; None before any has ended."""
        found = self._pools[pool]
        return found.pace if found.expected else None

    def seconds_left(self) -> float:
        """Return about how long the rest takes, if all nodes of all pools are there."""
        slots = max(1, sum(pool.slots for pool in self.folding))
        folding = [
            self._pools[pool.name].pace * (self._ready.work[pool.name] + self._unsearched.work[pool.name])
            for pool in self.folding
        ]
        searching = 0.0
        if self.search is not None:
            name = self.search.name
            searching = self._pools[name].pace * self._unsearched.work[name] / self.search.slots
        return max(searching, sum(folding) / max(1, len(folding)) / slots)

    def next_task(self, name: str) -> Task | None:
        """Return the next task of a pool, which from now on counts as running; None if it has no free slot or nothing
        to do.
        """
        pool = self._pools[name]
        if pool.running >= pool.forecast.slots:
            return None
        queue = self._unsearched if pool.forecast is self.search else self._ready
        targets = [] if queue is self._unsearched else self._take_alone(pool.forecast)
        targets = targets or queue.take(pool.forecast, self._aim(pool, queue))
        if not targets:
            return None
        pool.running += 1
        seconds = sum(pool.forecast.seconds(self.residues[target]) for target in targets)
        return Task(pool=name, targets=tuple(targets), seconds=seconds)

    def end(self, task: Task, seconds: float | None = None) -> None:
        """Free the slot of a task; `seconds` is how long it took, if it came to its end."""
        pool = self._pools[task.pool]
        pool.running -= 1
        if seconds is not None:
            pool.measure(task, seconds)

    def found(self, target: int) -> None:
        """Say that the features of a target are there, so that it can be folded."""
        self._ready.add(target)

    def finish(self, target: int) -> None:
        """Say that a target is done."""
        self._open.discard(target)
        self.finished += 1

    def fail(self, target: int, reason: str) -> None:
        """Say that a target has failed for good."""
        self._open.discard(target)
        self.failures[target] = reason

    def put_back(self, task: Task, target: int) -> None:
        """Let a target that a task has not begun wait again."""
        is_search = self.search is not None and task.pool == self.search.name
        (self._unsearched if is_search else self._ready).add(target)

    def try_again(self, task: Task, target: int, reason: str) -> None:
        """Try a target again that ran out of memory or lost its node, in a larger pool if there is one.

        After `MOST_RETRIES` further tries it has failed for that reason.
        """
        self._tries[target] = self._tries.get(target, 0) + 1
        if self._tries[target] > MOST_RETRIES:
            self.fail(target, f"{reason} (tried {self._tries[target]} times)")
        elif self.search is not None and task.pool == self.search.name:
            self.put_back(task, target)
        else:
            tried = self._pools[task.pool].forecast.longest
            self._alone[target] = tried if self.longest > tried else tried - 1

    def _take_alone(self, pool: PoolForecast) -> list[int]:
        for target, above in self._alone.items():
            if pool.longest > above and pool.fits(self.residues[target]):
                del self._alone[target]
                return [target]
        return []

    def _aim(self, pool: _Pool, queue: _Queue) -> float:
        """Return how many seconds of the pool's forecast the next task should have.

        It is the usual length, less while little is ready for all free slots, and less near the end, so that all pools
        end together.
        """
        name, search = pool.forecast.name, self.search
        alike = [search] if search is not None and queue is self._unsearched else list(self.folding)
        free = sum(each.slots - self._pools[each.name].running for each in alike)
        slots = sum(each.slots for each in alike)
        usual = pool.forecast.task_seconds * (1.0 if pool.expected else _FIRST_SHARE)
        ready = pool.pace * queue.work[name]
        coming = 0.0 if queue is self._unsearched else pool.pace * self._unsearched.work[name]
        share = min(ready / max(1, free), (ready + coming) / (2 * max(1, slots)))
        return min(usual, max(_LEAST_SHARE * usual, share)) / pool.pace


def describe_forecast(residues: Sequence[int], pools: Sequence[PoolForecast]) -> Mapping[str, tuple[int, float]]:
    """Return for each pool how many targets it is the smallest pool for, and their seconds; longer ones fit nowhere."""
    found = dict.fromkeys((pool.name for pool in pools), (0, 0.0))
    by_size = sorted(pools, key=lambda pool: pool.longest)
    for length in residues:
        pool = next((pool for pool in by_size if pool.fits(length)), None)
        if pool is not None:
            count, seconds = found[pool.name]
            found[pool.name] = count + 1, seconds + pool.seconds(length)
    return found
