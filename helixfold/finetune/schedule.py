"""Turns of fine-tunings that run one step at a time: who begins, who is next, and who has ended."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from data_pipeline.errors import InputError
from helixfold.finetune.memory import RunMemory, fitting
from helixfold.training.trainer import DivergedError

Turns = Literal["steps", "deadline"]
# How a fine-tuning stands: it waits for memory, takes turns, has come to its end, has had too many losses that are not
# finite, cannot go on for another reason, or was stopped and can be resumed.
State = Literal["waiting", "running", "finished", "diverged", "failed", "stopped"]


class Run(Protocol):
    """A fine-tuning that takes turns."""

    @property
    def is_finished(self) -> bool:
        """Return whether it has come to its end."""

    def turns(self) -> Iterator[int]:
        """Make a step at a time, and yield the number of steps made after each."""

    def release(self) -> None:
        """Free what only a running step needs."""


@dataclass(kw_only=True)
class Place:
    """A fine-tuning's place in the schedule. `begin` makes the run, once there is memory for it."""

    name: str
    begin: Callable[[], Run]
    memory: RunMemory
    steps: int  # that it is to make in all
    deadline: float | None = None  # seconds from the beginning
    state: State = "waiting"
    reason: str = ""  # why it diverged or failed
    made: int = 0  # steps since the schedule began
    share: int = 0  # what it is compared by with others: `made`, from what those had that were there when it began
    done: int = 0  # steps in all
    seconds: float = 0.0  # of its own steps
    run: Run | None = None
    turns: Iterator[int] | None = None

    @property
    def has_ended(self) -> bool:
        """Return whether it takes no more turns."""
        return self.state not in ("waiting", "running")

    def slack(self, now: float) -> float:
        """Return the seconds that would be left before its deadline if all turns were its own from `now` on."""
        if self.deadline is None:
            return float("inf")
        a_step = self.seconds / self.made if self.made else 0.0
        return self.deadline - now - a_step * (self.steps - self.done)


@dataclass(kw_only=True)
class Schedule:
    """Fine-tunings that take turns on one device, as many at once as fit into `memory` bytes, `shared` by all of them.

    What a run computes does not depend on the others, so neither does its result on the order of turns.
    """

    places: Sequence[Place]
    shared: int
    memory: int
    turns: Turns = "steps"
    say: Callable[[str], object] = print
    clock: Callable[[], float] = time.monotonic
    most_at_once: int = 0  # fine-tunings that were under way at the same time
    _began: float = field(default=0.0)

    def carry_out(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Take turns until all have ended. Once `is_stopped`, each run under way saves in its next turn and stops."""
        self._began = self.clock()
        while True:
            if not is_stopped():
                self._admit()
            running = [place for place in self.places if place.state == "running"]
            self.most_at_once = max(self.most_at_once, len(running))
            if not running:
                break
            self._turn(self._next(running))
        for place in self.places:
            if place.state == "waiting":
                place.state = "stopped"

    def _admit(self) -> None:
        """Begin those that wait, in their order, as far as there is memory."""
        waiting = [place for place in self.places if place.state == "waiting"]
        running = [place for place in self.places if place.state == "running"]
        beside = [place.memory for place in running]
        count = fitting([place.memory for place in waiting], beside, self.shared, self.memory)
        share = min((place.share for place in running), default=0)
        if not count and not running and waiting:
            # Alone it has been settled to fit; it is for the device to refuse it.
            count = 1
        for place in waiting[:count]:
            try:
                place.run = place.begin()
                place.turns = place.run.turns()
                place.state, place.share = "running", share
                self.say(f"{place.name}: begins")
            except InputError as error:
                self._end(place, "failed", str(error))

    def _next(self, running: Sequence[Place]) -> Place:
        if self.turns == "deadline":
            now = self.clock() - self._began
            return min(running, key=lambda place: (place.slack(now), place.share))
        return min(running, key=lambda place: place.share)

    def _turn(self, place: Place) -> None:
        assert place.turns is not None
        assert place.run is not None
        start = self.clock()
        try:
            place.done = next(place.turns)
            place.made, place.share = place.made + 1, place.share + 1
            if place.run.is_finished:
                next(place.turns)  # writes its result and ends, so that its memory is free at once
            place.run.release()
        except StopIteration:
            self._end(place, "finished" if place.run.is_finished else "stopped")
        except DivergedError as error:
            self._end(place, "diverged", str(error))
        except (InputError, OSError, MemoryError, RuntimeError) as error:
            self._end(place, "failed", str(error))
        place.seconds += self.clock() - start

    def _end(self, place: Place, state: State, reason: str = "") -> None:
        """Take a run off the schedule and drop it, so that its memory is free for the next one."""
        place.state, place.reason = state, reason
        place.turns = place.run = None
        gc.collect()  # a run's parts refer to each other
        self.say(f"{place.name}: {state}{f': {reason}' if reason else f' after {place.done} steps'}")
