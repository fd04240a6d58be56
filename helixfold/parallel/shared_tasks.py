"""Tasks that several runs share by claims: what this run takes of them, and what it takes over from runs that died."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from data_pipeline.claims import Claims
from helixfold.parallel.worker_group import ControlChannel

Result = TypeVar("Result")
_POLL_INTERVAL = 2.0  # seconds


class SharedTasks:
    """Tasks by number that this run shares with others; all ranks of a group call its methods together.

    `claims` are those of the group's first rank, and None on the others. `is_needed` is called of a task that was
    claimed, and says whether there is something to do; `report` is told of tasks that this run does not do, with the
    reason of those that failed in another run.
    """

    def __init__(
        self,
        names: Sequence[str],
        claims: Claims | None,
        group: ControlChannel,
        *,
        is_needed: Callable[[int], bool],
        report: Callable[[int, str | None], None],
    ) -> None:
        self._names, self._claims, self._group = names, claims, group
        self._is_needed, self._report = is_needed, report
        self._held_elsewhere: dict[int, float | None] = {}  # by number, when the claim was last renewed

    def claimed(self, lots: Iterable[Sequence[int]]) -> Iterator[list[int]]:
        """Yield what this run claims of each lot, then, one by one, the tasks of runs that have died meanwhile.

        It ends when all other tasks are done, or are held by runs that are seen to live.
        """
        for lot in lots:
            if mine := self._agreed(partial(self._take, lot=lot)):
                yield mine
        while (number := self._agreed(self._take_over)) is not None:
            yield [number]

    def end(self, number: int, failure: str | None) -> None:
        """Say that a claimed task is done, or why it failed."""
        if self._claims is None:
            return
        with suppress(OSError):  # the claim expires, and whoever takes the task over finds it done
            self._claims.end(self._names[number], "finished" if failure is None else "failed", failure)

    def require_held(self, number: int) -> None:
        """Raise `LostClaimError` if another run has claimed the task meanwhile."""
        if self._claims is not None:
            self._claims.require_held(self._names[number])

    def _agreed(self, action: Callable[[Claims], Result]) -> Result:
        """Return on every rank what an action with the claims gives on the first."""
        found = self._group.run_together(lambda: None if self._claims is None else action(self._claims))
        agreed: Result = self._group.all_gather(found)[0]
        return agreed

    def _take(self, claims: Claims, lot: Sequence[int]) -> list[int]:
        return [number for number in lot if self._is_mine(claims, number)]

    def _take_over(self, claims: Claims) -> int | None:
        """Wait until a task of a dead run can be claimed, or all others are known to be done or in good hands."""
        while self._held_elsewhere:
            for number, first_seen in list(self._held_elsewhere.items()):
                del self._held_elsewhere[number]
                if self._is_mine(claims, number):
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

    def _is_mine(self, claims: Claims, number: int) -> bool:
        """Claim a task if it is free; return whether this run has it now and there is something to do."""
        name = self._names[number]
        match claims.take(name):
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
