"""Tasks that several runs share by claims: what this run takes of them, and what it takes over from runs that died."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from data_pipeline.io.claims import Claims

_POLL_INTERVAL = 2.0  # seconds


class SharedTasks:
    """Tasks by number that this run shares with others.

    `is_needed(number)` returns whether a claimed task is still to be done. `report(number, failure)` is called for each
    task that another run has done, with the reason if it failed.
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
        self._held_elsewhere: dict[int, float | None] = {}  # by number, when the claim was last renewed

    def claimed(self, lots: Iterable[Sequence[int]]) -> Iterator[list[int]]:
        """Yield what this run claims of each lot, then, one by one, the tasks of runs that have died meanwhile.

        It ends when all other tasks are done, or are held by runs that are seen to live.
        """
        for lot in lots:
            if mine := [number for number in lot if self._is_mine(number)]:
                yield mine
        while (number := self._take_over()) is not None:
            yield [number]

    def end(self, number: int, failure: str | None) -> None:
        """Say that a claimed task is done, or why it failed."""
        with suppress(OSError):  # the claim expires, and whoever takes the task over finds it done
            self._claims.end(self._names[number], "finished" if failure is None else "failed", failure)

    def require_held(self, number: int) -> None:
        """Raise `LostClaimError` if another run has claimed the task meanwhile."""
        self._claims.require_held(self._names[number])

    def _take_over(self) -> int | None:
        """Wait until a task of a dead run can be claimed, or all others are known to be done or in good hands."""
        while self._held_elsewhere:
            for number, first_seen in list(self._held_elsewhere.items()):
                del self._held_elsewhere[number]
                if self._is_mine(number):
                    return number
                renewed = self._held_elsewhere.get(number)
                if first_seen is None:
                    continue
                if number in self._held_elsewhere and renewed is not None and renewed > first_seen:
                    del self._held_elsewhere[number]  # its run lives, and does it
                    self._report(number, None)
                elif number in self._held_elsewhere:
                    self._held_elsewhere[number] = first_seen
            if self._held_elsewhere:
                time.sleep(_POLL_INTERVAL)
        return None

    def _is_mine(self, number: int) -> bool:
        """Claim a task if it is free; return whether this run has it now, or before, and there is something to do."""
        name, claims = self._names[number], self._claims
        match "taken" if claims.holds(name) else claims.take(name):
            case "taken":
                if self._is_needed(number):
                    return True
                claims.end(name, "finished")
                self._report(number, None)
            case "done":
                self._report(number, claims.failures([name]).get(name))
            case "held":
                self._held_elsewhere[number] = claims.renewed(name)
        return False
