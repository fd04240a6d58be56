"""The schedule of a batch: which targets need a search or a prediction, which pools they fit into, and for how long.

This module only does the bookkeeping; it uses no clock, files or engine. Targets are represented by their indices.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class PoolEstimate:
    """The number of parallel tasks of a pool, the longest target that fits, and the estimated time of a target."""

    name: str
    slots: int
    longest: int  # residues of the longest target that fits into its memory
    seconds: Callable[[int], float]  # time of a target by its number of residues
    task_seconds: float  # maximum time of the targets that a worker claims at a time

    def fits(self, residues: int) -> bool:
        """Return whether a target with this number of residues fits into the memory of a worker."""
        return residues <= self.longest


@dataclass
class Schedule:
    """The unfinished targets of a batch by their state.

    `sequences` and `residues` are of all targets, by index. `search` and `folding` are the pools, and `searched` are
    the targets that already have features. `finished` counts the targets that this batch has folded.

    `open` has the targets to search or fold, the longest first, with equal sequences next to each other. `to_search`
    are the open targets without features. `unfit` are targets that fit into no pool, which are not open.
    """

    sequences: Sequence[str]
    residues: Sequence[int]
    search: PoolEstimate | None
    folding: Sequence[PoolEstimate]
    searched: Collection[int] = ()
    already_finished: Collection[int] = ()  # by earlier runs
    failures: dict[int, str] = field(default_factory=dict)  # reasons by target
    finished: int = 0

    def __post_init__(self) -> None:
        self.longest = max((pool.longest for pool in self.folding), default=0)
        remaining = sorted(
            set(range(len(self.residues))).difference(self.already_finished),
            key=lambda each: (-self.residues[each], self.sequences[each], each),
        )
        self.open = {target: None for target in remaining if self.residues[target] <= self.longest}
        self.unfit = sorted(set(remaining).difference(self.open))
        self.to_search = set(self.open).difference(self.searched) if self.search is not None else set[int]()

    def pools_for(self, target: int) -> list[PoolEstimate]:
        """Return the pools for the next step of a target: the search pool, or the folding pools into which it fits."""
        if target in self.to_search:
            return [self.search] if self.search is not None else []
        return [pool for pool in self.folding if pool.fits(self.residues[target])]

    def end(self, target: int, failure: str | None) -> None:
        """Record the end of a target's search or prediction; `failure` is the reason if it failed."""
        is_search = target in self.to_search
        self.to_search.discard(target)
        if failure is not None:
            self.failures[target] = failure
        elif not is_search:
            self.finished += 1
        if failure is not None or not is_search:
            del self.open[target]

    def search_seconds(self) -> float:
        """Return the estimated seconds of all remaining searches on all nodes."""
        if self.search is None:
            return 0.0
        return sum(self.search.seconds(self.residues[each]) for each in self.to_search) / self.search.slots

    def seconds(self) -> float:
        """Return the estimated seconds of all remaining work on all nodes of all pools."""
        lengths = [self.residues[each] for each in self.open]
        mean_seconds = (sum(map(pool.seconds, lengths)) / len(self.folding) for pool in self.folding)
        return max(self.search_seconds(), sum(mean_seconds) / max(1, sum(pool.slots for pool in self.folding)))
