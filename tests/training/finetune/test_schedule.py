"""Fine-tunings take turns as memory allows, fairly, and one that ends or fails makes room at once."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from data_pipeline.io.errors import InputError
from helixfold.results.driver import Run
from helixfold.runtime.standard_streams import restored_verbosity, set_verbosity
from helixfold.training.finetune.finetuning import Finetuning
from helixfold.training.finetune.memory import RunMemory, fitting
from helixfold.training.finetune.run import Schedule, ScheduledRun
from helixfold.training.trainer import DivergedError


def memory(state: int, activations: int = 100) -> RunMemory:
    return RunMemory(state=state, optimizer=0, effective=0, activations=activations)


@dataclass
class Fake:
    """A run of so many steps, each of which takes a second; it writes what happens into `log`."""

    name: str
    steps: int
    log: list[str]
    clock: list[float]
    error: Exception | None = None
    stops: list[bool] = field(default_factory=list)
    is_finished: bool = False

    def turns(self) -> Iterator[int]:
        for step in range(1, self.steps + 1):
            if self.stops:
                return
            self.clock[0] += 1
            self.log.append(self.name)
            if self.error is not None and step == 2:
                raise self.error
            self.is_finished = step == self.steps
            yield step

    def release(self) -> None:
        self.log.append("-")


def schedule(
    runs: dict[str, tuple[int, int]],
    available: int = 10_000,
    *,
    turns: str = "steps",
    errors: dict[str, Exception] | None = None,
    deadlines: dict[str, float] | None = None,
    stops: list[bool] | None = None,
) -> tuple[Schedule, list[str]]:
    """A schedule of runs, each of so many steps and bytes, and what will happen in it."""
    log, clock = list[str](), [0.0]
    scheduled = [
        ScheduledRun(
            name=name,
            begin=lambda name=name, steps=steps: cast(  # type: ignore[misc]
                Finetuning,
                Fake(name, steps, log, clock, (errors or {}).get(name), stops if stops is not None else []),
            ),
            memory=memory(state),
            steps=steps,
            deadline=(deadlines or {}).get(name),
        )
        for name, (steps, state) in runs.items()
    ]
    made = Schedule(
        runs=scheduled,
        progress=Run(Path("/dev/null"), "step", sum(run.steps for run in scheduled)),
        shared=1000,
        memory=available,
        turns=turns,  # type: ignore[arg-type]
        clock=lambda: clock[0],
    )
    return made, log


def order(log: list[str]) -> str:
    return "".join(name for name in log if name != "-")


def test_turns_go_round_and_a_run_is_released_after_each() -> None:
    made, log = schedule({"a": (3, 10), "b": (2, 10), "c": (3, 10)})
    made.carry_out()
    assert order(log) == "abcabcac"
    assert log[:4] == ["a", "-", "b", "-"]
    assert made.max_concurrent == 3
    assert all((run.state, run.new_steps, run.seconds) == ("finished", run.steps, run.steps) for run in made.runs)


def test_memory_decides_how_many_run_at_once_and_the_next_begins_when_one_ends() -> None:
    # Beside 1,000 shared bytes and 110 of a step with its reserve there are 250.
    made, log = schedule({"a": (3, 100), "b": (1, 100), "c": (2, 100)}, 1000 + 110 + 250)
    made.carry_out()
    assert order(log) == "abacac"
    assert made.max_concurrent == 2
    assert [run.state for run in made.runs] == ["finished"] * 3


def test_what_fits_counts_the_largest_step_once_and_all_numbers() -> None:
    waiting = [memory(100, 200), memory(100, 100), memory(100, 1000)]
    assert fitting(waiting, [], 1000, 1000 + 300 + 1100) == 3
    assert fitting(waiting, [], 1000, 1000 + 300 + 1099) == 2
    assert fitting(waiting, [memory(50, 0)], 1000, 1000 + 250 + 220) == 2
    assert fitting(waiting, [memory(51, 0)], 1000, 1000 + 250 + 220) == 1
    assert fitting(waiting, [memory(50, 0)], 1000, 1000) == 0


def test_one_that_diverges_or_fails_ends_alone_and_frees_its_place() -> None:
    errors = {"a": DivergedError("10 steps in a row"), "b": InputError("a damaged record")}
    made, log = schedule({"a": (9, 100), "b": (9, 100), "c": (2, 100)}, 1000 + 110 + 200, errors=errors)
    made.carry_out()
    assert order(log) == "ababcc"
    assert {run.name: run.state for run in made.runs} == {"a": "diverged", "b": "failed", "c": "finished"}
    assert made.progress.failures == {"a": "DivergedError: 10 steps in a row", "b": "a damaged record"}
    # Steps that a failed one does not make are not waited for.
    assert made.progress.done == made.progress.total == 20
    assert all(run.finetuning is None and run.turns is None for run in made.runs)


def test_jobs_are_named_when_they_begin_and_end_except_with_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    errors: dict[str, Exception] = {"b": InputError("a damaged record")}
    for is_quiet in (False, True):
        made, _ = schedule({"a": (1, 10), "b": (3, 10)}, errors=errors)
        with restored_verbosity():
            set_verbosity("quiet" if is_quiet else "normal")
            made.carry_out()
        lines = ["helixfold: a: begins", "helixfold: b: begins", "helixfold: a: finished after 1 step"]
        assert capsys.readouterr().err.splitlines() == [*([] if is_quiet else lines), "b: failed: a damaged record"]


def test_a_newcomer_does_not_catch_up_with_those_that_began_before() -> None:
    made, log = schedule({"a": (6, 100), "b": (3, 100), "c": (3, 100)}, 1000 + 110 + 200)
    made.carry_out()
    assert order(log) == "ababab" + "acac" + "ac"


def test_by_deadline_the_one_with_least_time_to_spare_is_next() -> None:
    made, log = schedule(
        {"late": (3, 10), "soon": (3, 10), "free": (2, 10)}, turns="deadline", deadlines={"late": 100.0, "soon": 4.0}
    )
    made.carry_out()
    assert order(log).startswith("soon")
    assert log.index("late") > 2
    assert order(log).endswith("freefree")


def test_steps_of_earlier_schedules_took_no_seconds_of_this_one() -> None:
    """A step takes 30 s: two were made in 60 s, and 4 before. 4 more take 120 of the 140 s that are left."""
    run = ScheduledRun(
        name="a",
        begin=lambda: cast(Finetuning, None),
        memory=memory(1),
        steps=10,
        deadline=200.0,
        new_steps=2,
        completed=6,
        seconds=60.0,
    )
    assert run.slack(60.0) == 20.0
    assert replace(run, new_steps=0, seconds=0.0).slack(60.0) == 140.0
    assert replace(run, deadline=None).slack(60.0) == float("inf")


def test_asked_to_stop_all_that_run_save_and_none_begins() -> None:
    stops: list[bool] = []
    made, log = schedule({"a": (3, 100), "b": (3, 100), "c": (3, 100)}, 1000 + 110 + 200, stops=stops)

    def is_stopped() -> bool:
        if len(order(log)) == 3:
            stops.append(True)
        return bool(stops)

    made.carry_out(is_stopped)
    assert order(log) == "aba"
    assert [run.state for run in made.runs] == ["stopped"] * 3
