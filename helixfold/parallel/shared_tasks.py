"""Tasks that several runs share by claims, including tasks of runs that died."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from data_pipeline.io.claims import Claims

_POLL_INTERVAL = 2.0  # seconds


class SharedTasks:
    """Tasks, by index in `names`, that this run shares with other runs through `claims`.

    `is_needed(index)` returns whether a claimed task still has to be done. `report(index, failure)` is called for each
    task that another run has finished, with the reason if it failed.
    """

    def __init__(
        self,
        names: Sequence[str],
        claims: Claims,
        *,
        is_needed: Callable[[int], bool],
        report: Callable[[int, str | None], None],
    ) -> None:
        self._names, self._claims = names, claims
        self._is_needed, self._report = is_needed, report
        self._held_elsewhere: dict[int, float | None] = {}  # time at which each claim was last renewed, by task index

    def claimed(self, lots: Iterable[Sequence[int]]) -> Iterator[list[int]]:
        """Yield the tasks that this run claims of each lot; then, one by one, tasks of runs that have died.

        The iterator ends when all other tasks are finished or are claimed by live runs.
        """
        for lot in lots:
            if mine := [index for index in lot if self._is_mine(index)]:
                yield mine
        while (index := self._take_over()) is not None:
            yield [index]

    def end(self, index: int, failure: str | None) -> None:
        """Record that a task claimed by this run is finished, or with `failure` why it failed."""
        with suppress(OSError):  # the claim expires, and the next run finds the task finished
            self._claims.end(self._names[index], "finished" if failure is None else "failed", failure)

    def require_held(self, index: int) -> None:
        """Raise `LostClaimError` if another run has claimed the task since."""
        self._claims.require_held(self._names[index])

    def _take_over(self) -> int | None:
        """Wait until a task of a dead run can be claimed; return None if all others are finished or have a live run."""
        while self._held_elsewhere:
            for index, first_seen in list(self._held_elsewhere.items()):
                del self._held_elsewhere[index]
                if self._is_mine(index):
                    return index
                renewed = self._held_elsewhere.get(index)
                if first_seen is None:
                    continue
                if index in self._held_elsewhere and renewed is not None and renewed > first_seen:
                    del self._held_elsewhere[index]  # the other run is alive and will finish the task
                    self._report(index, None)
                elif index in self._held_elsewhere:
                    self._held_elsewhere[index] = first_seen
            if self._held_elsewhere:
                time.sleep(_POLL_INTERVAL)
        return None

    def _is_mine(self, index: int) -> bool:
        """Claim a task if it is free; return whether this run has the claim and the task still has to be done."""
        name, claims = self._names[index], self._claims
        match "taken" if claims.holds(name) else claims.take(name):
            case "taken":
                if self._is_needed(index):
                    return True
                claims.end(name, "finished")
                self._report(index, None)
            case "done":
                self._report(index, claims.failures([name]).get(name))
            case "held":
                self._held_elsewhere[index] = claims.renewed(name)
        return False
