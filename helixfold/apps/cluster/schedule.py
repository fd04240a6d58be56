"""Which targets of a batch are still to be searched or folded, which of them fit into a pool, and how long they take.

This is bookkeeping alone, without clock, files or engine. Targets are called by their numbers.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class PoolForecast:
    """The forecast of a pool: how many tasks it runs at a time, which targets fit, and how long they take."""

    name: str
    slots: int
    longest: int  # residues of the longest target that fits into its memory
    seconds: Callable[[int], float]  # of a target of so many residues
    task_seconds: float  # the most that a worker claims at a time

    def fits(self, residues: int) -> bool:
        """Return whether a target of so many residues fits into the memory of a worker."""
        return residues <= self.longest


@dataclass
class Schedule:
    """The targets of a batch that are still `open`, the longest first and equal sequences next to each other.

    Targets that fit into no pool, the `unfit`, are not open. Those `to_search` have no features yet.
    """

    sequences: Sequence[str]
    residues: Sequence[int]
    search: PoolForecast | None
    folding: Sequence[PoolForecast]
    searched: Collection[int] = ()
    left_out: Collection[int] = ()  # which are finished already
    failures: dict[int, str] = field(default_factory=dict)  # why targets failed
    finished: int = 0

    def __post_init__(self) -> None:
        self.longest = max((pool.longest for pool in self.folding), default=0)
        remaining = sorted(
            set(range(len(self.residues))).difference(self.left_out),
            key=lambda each: (-self.residues[each], self.sequences[each], each),
        )
        self.open = {target: None for target in remaining if self.residues[target] <= self.longest}
        self.unfit = sorted(set(remaining).difference(self.open))
        self.to_search = set(self.open).difference(self.searched) if self.search is not None else set[int]()

    def pools_for(self, target: int) -> list[PoolForecast]:
        """Return the pools that have to do with a target next: the one that searches, or those that it fits into."""
        if target in self.to_search:
            return [self.search] if self.search is not None else []
        return [pool for pool in self.folding if pool.fits(self.residues[target])]

    def end(self, target: int, failure: str | None) -> None:
        """Note that what a target waited for is done, a search or its prediction, or why it has failed."""
        is_search = target in self.to_search
        self.to_search.discard(target)
        if failure is not None:
            self.failures[target] = failure
        elif not is_search:
            self.finished += 1
        if failure is not None or not is_search:
            del self.open[target]

    def search_seconds(self) -> float:
        """Return the forecast of all searches that are left, on all nodes."""
        if self.search is None:
            return 0.0
        return sum(self.search.seconds(self.residues[each]) for each in self.to_search) / self.search.slots

    def seconds(self) -> float:
        """Return the forecast of all that is left, on all nodes of all pools."""
        lengths = [self.residues[each] for each in self.open]
        means = (sum(map(pool.seconds, lengths)) / len(self.folding) for pool in self.folding)
        return max(self.search_seconds(), sum(means) / max(1, sum(pool.slots for pool in self.folding)))
