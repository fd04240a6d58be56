"""Run one fine-tuning, or several that take turns, from options to an exit code, and write their table and page.

The schedule of turns says who begins, who is next, and who has ended; each turn is one step.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from data_pipeline.io.errors import InputError
from data_pipeline.io.extras import require
from data_pipeline.io.files import unmoved_directory
from helixfold.execution.available import available_memory
from helixfold.execution.device import dtype_on, limit_threads, pick_device
from helixfold.ops.device_properties import DeviceProperties, properties_of
from helixfold.parallel.mesh import Mesh, join
from helixfold.planning.size import gib
from helixfold.report.finetuning import PageTable, compared_curves, write_finetuning_page
from helixfold.report.page import counted, duration
from helixfold.results.driver import Run, driven
from helixfold.results.training_log import LOG_FILE, TrainingHistory, read_log
from helixfold.results.writing import write_file
from helixfold.runtime.standard_streams import print_note, print_summary
from helixfold.training.checkpoint_files import checkpoint_steps
from helixfold.training.estimate import memory_per_rank
from helixfold.training.finetune.adapted import FrozenParameters, base_file, load_base
from helixfold.training.finetune.finetuning import Finetuning, Task, require_same_finetuning, trained_numbers
from helixfold.training.finetune.jobs import config_of, read_tasks
from helixfold.training.finetune.memory import RunMemory, fitting, parameter_bytes, run_memory, with_settled_memory
from helixfold.training.finetune.options import FinetuneOptions
from helixfold.training.finetune.result import PAGE_FILE, FinetuningResult, read_result, signed
from helixfold.training.finetune.settings import FinetuneConfig
from helixfold.training.progress import RunProgress, print_message
from helixfold.training.run import exit_code_of, usual_workers
from helixfold.training.run_dtype import with_settled_dtype
from helixfold.training.stopping import StopRequest
from helixfold.training.trainer import DivergedError
from helixfold.weights import demonstration

Turns = Literal["steps", "deadline"]
# How a fine-tuning stands: it waits for memory, takes turns, has come to its end, has had too many losses that are not
# finite, cannot go on for another reason, or was stopped and can be resumed.
State = Literal["waiting", "running", "finished", "diverged", "failed", "stopped"]


@dataclass(kw_only=True)
class Place:
    """A fine-tuning's place in the schedule. `begin` makes the run, once there is memory for it."""

    name: str
    begin: Callable[[], Finetuning]
    memory: RunMemory
    steps: int  # that it is to make in all
    deadline: float | None = None  # seconds from the beginning
    state: State = "waiting"
    made: int = 0  # steps since the schedule began
    share: int = 0  # what it is compared by with others: `made`, from what those had that were there when it began
    done: int = 0  # steps in all
    seconds: float = 0.0  # of its own steps
    run: Finetuning | None = None
    turns: Iterator[int] | None = None

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
    run: Run  # of which a step is one of a fine-tuning
    turns: Turns = "steps"
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
            with self.run.item(place.name, place.steps, continues=True):
                place.run = place.begin()
                place.turns = place.run.turns()
                place.state, place.share = "running", share
                print_note(f"{place.name}: begins")
            if place.name in self.run.failures:
                self._end(place, "failed")

    def _next(self, running: Sequence[Place]) -> Place:
        if self.turns == "deadline":
            now = self.clock() - self._began
            return min(running, key=lambda place: (place.slack(now), place.share))
        return min(running, key=lambda place: place.share)

    def _turn(self, place: Place) -> None:
        assert place.turns is not None
        assert place.run is not None
        start = self.clock()
        state: State = "failed"
        with self.run.item(place.name, place.steps - place.done, continues=True):
            try:
                done = next(place.turns)
                self.run.skip(done - place.done - 1)  # steps of an earlier run
                self.run.report(place.name, f"step {done}")
                place.done, place.made, place.share = done, place.made + 1, place.share + 1
                if place.run.is_finished:
                    next(place.turns)  # writes its result and ends, so that its memory is free at once
                place.run.release()
            except StopIteration:
                self._end(place, "finished" if place.run.is_finished else "stopped")
            except DivergedError:
                state = "diverged"
                raise
        if place.name in self.run.failures:
            self._end(place, state)
        place.seconds += self.clock() - start

    def _end(self, place: Place, state: State) -> None:
        """Take a run off the schedule and drop it, so that its memory is free for the next one."""
        place.state = state
        place.turns = place.run = None
        gc.collect()  # a run's parts refer to each other
        if place.name not in self.run.failures:
            print_note(f"{place.name}: {state} after {place.done} steps")
        if state == "finished":
            self.run.skip(place.steps - place.done)
            self.run.report(place.name, state, 0)


TABLE_FILE = "finetuning.tsv"
_COLUMNS = (
    *("name", "adapter", "state", "steps", "best_step", "held_out_targets"),
    *("lddt_ca_before", "lddt_ca_after", "lddt_ca_change", "seconds"),
)


def write_overview(tasks: Sequence[Task], places: Sequence[Place], run: Run) -> None:
    """Write `finetuning.tsv` and `finetuning.html` of all fine-tunings of a file into the output directory."""
    output = run.output
    by_name = {place.name: place for place in places}
    results = {task.name: read_result(task.output) for task in tasks}
    rows = [_row(task, by_name.get(task.name), results[task.name]) for task in tasks]
    lines = ["\t".join(_COLUMNS), *("\t".join(row) for row in rows)]
    write_file(output / TABLE_FILE, "".join(f"{line}\n" for line in lines).encode())
    states = [row[_COLUMNS.index("state")] for row in rows]
    histories = {task.name: history for task in tasks if (history := _history(task.output)) is not None}
    changes = [
        (name, signed(change))
        for name, result in results.items()
        if result is not None and (change := result.change("lddt_ca")) is not None
    ]
    write_finetuning_page(
        output / PAGE_FILE,
        kind="Fine-tunings of one model",
        title=output.resolve().name,
        figures={
            f"of {counted(len(tasks), 'fine-tuning')} finished": str(states.count("finished")),
            "diverged or failed": str(sum(state in ("diverged", "failed") for state in states)),
            "of their steps": duration(sum(place.seconds for place in places)),
        },
        tables=[
            PageTable(title="Fine-tunings", columns=[name.replace("_", " ") for name in _COLUMNS], rows=rows),
            PageTable(
                title="Change of CA-lDDT on held-out targets, with 95 % interval",
                columns=["name", "change"],
                rows=changes,
            ),
            PageTable(title="What ended", columns=["name", "reason"], rows=[*run.failures.items()]),
        ],
        picture=compared_curves(histories) if histories else None,
    )


def _row(task: Task, place: Place | None, result: FinetuningResult | None) -> list[str]:
    state = "finished" if place is None or (result is not None and place.state == "finished") else place.state
    scores = ["", "", ""]
    if result is not None and result.targets:
        means = result.means()["lddt_ca"]
        scores = [f"{means['before']:.4f}", f"{means['after']:.4f}", f"{means['change']['mean']:+.4f}"]
    steps = result.steps if result is not None else 0 if place is None else place.done
    return [
        task.name,
        task.config.adapter,
        state,
        str(steps),
        "" if result is None or result.best_step is None else str(result.best_step),
        "" if result is None else str(len(result.targets)),
        *scores,
        "" if place is None else f"{place.seconds:.1f}",
    ]


def _history(directory: Path) -> TrainingHistory | None:
    try:
        return read_log(directory / LOG_FILE)
    except (InputError, OSError):
        return None


def settings_lines(options: FinetuneOptions) -> list[str]:
    """Return all settings of a fine-tuning, as `--show-settings` prints them."""
    preset, _ = base_file(options.model, options.weights)
    return [f"{name}={value}" for name, value in config_of(preset, vars(options)).flat().items()]


def forecast_of(options: FinetuneOptions) -> list[str]:
    """Return the lines of a dry run: what takes memory in a fine-tuning with these options."""
    preset, _ = base_file(options.model, options.weights)
    device = pick_device(options.device)
    memory = options.memory or available_memory(device)
    return forecast_lines(config_of(preset, vars(options)), properties_of(device), memory)


def forecast_lines(config: FinetuneConfig, properties: DeviceProperties, memory: int) -> list[str]:
    """Return what takes how much memory in a fine-tuning on a card."""
    config = with_settled_memory(config, properties, memory)
    found, dtype = run_memory(config, properties), dtype_on(config.run.dtype, properties)
    shared = 0 if config.adapter == "full" else parameter_bytes(config.run.model, dtype)
    everything = run_memory(replace(config, adapter="full"), properties)
    return [
        f"frozen parameters     {gib(shared)}",
        f"trained numbers       {found.numbers / 2**20:,.1f} MiB, of which gradients, moments and averages "
        f"{found.optimizer / 2**20:,.1f} MiB ({found.optimizer / everything.optimizer:.2%} of those of all parameters)",
        f"effective weights     {found.effective / 2**20:,.1f} MiB",
        f"a step, forward and backward, {config.run.recompute}: {gib(found.passes)}",
        f"in all                {gib(shared + found.numbers + found.effective + found.passes)} of {gib(memory)}",
    ]


def finetune(training_set: Path, options: FinetuneOptions, output: Path) -> int:
    """Carry out one fine-tuning, or resume it, and return an exit code as `helixfold train` does.

    Under `torchrun` every process calls this. Raise `InputError` for wrong input, before anything is written.
    """
    require("train", "biotite", "lmdb", "tensorboard", action="helixfold finetune")
    limit_threads()
    preset, path = base_file(options.model, options.weights)
    config = config_of(preset, vars(options))

    def work() -> int:
        with StopRequest().handling_signals() as stop:
            mesh = join(options.device, options.layout, any_dp=bool(checkpoint_steps(output / "checkpoints")))
            task = Task(
                name=output.resolve().name,
                training_set=training_set,
                held_out=options.held_out,
                config=config,
                output=output,
            )
            base = load_base(
                replace(preset, model=config.run.model),
                path,
                mesh.device,
                new=options.new_parameters,
                adapter=config.adapter,
                seed=config.run.seed,
            )
            if base.began_with and mesh.is_first:
                print_note(base.began_with)
            run = begin(task, base, mesh, path, stop, workers=options.workers)
            with unmoved_directory(output) if mesh.is_first else nullcontext():
                for _ in run.turns():
                    pass
            if not run.is_finished:
                return stop.exit_code
            if mesh.is_first:
                _tell(output)
            return 0

    return exit_code_of(work)


def begin(
    task: Task,
    base: FrozenParameters,
    mesh: Mesh,
    path: Path,
    stop: StopRequest,
    *,
    workers: int | None = None,
    memory: int | None = None,
    progress: bool = True,
) -> Finetuning:
    """Return a fine-tuning whose dtype and settings of recompute suit the devices, for `memory` or what is free."""
    run = with_settled_dtype(task.config.run, mesh, task.output / "checkpoints", print_message)
    config = replace(task.config, run=run)
    if not run.recompute.is_settled:
        there = memory_per_rank(mesh) if memory is None else memory
        # What is free now does not have the frozen parameters, which are there already.
        there += 0 if memory is not None else parameter_bytes(run.model)
        config = with_settled_memory(config, properties_of(mesh.device), there, mesh.layout)
    return Finetuning(
        replace(task, config=config),
        base,
        mesh,
        stop,
        descends_from=demonstration.ancestor(path),
        workers=usual_workers(mesh.device) if workers is None else workers,
        progress=progress,
    )


def finetune_jobs(jobs: Path, options: FinetuneOptions, output: Path) -> int:
    """Carry out the fine-tunings in a file, which take turns on one device; resume those that were begun.

    Return 0 if all have ended well, 1 if one diverged or failed, and after a signal that stopped them its exit code.
    Raise `InputError` for wrong input, before anything is written.
    """
    require("train", "biotite", "lmdb", "tensorboard", action="helixfold finetune")
    limit_threads()
    preset, path = base_file(options.model, options.weights)
    tasks = read_tasks(jobs, preset, output)
    device = pick_device(options.device)
    mesh, properties = Mesh.alone(device), properties_of(device)
    memory = options.memory or available_memory(device)
    base = load_base(preset, path, device)
    begun = [task for task in tasks if not _has_result(task, base)]
    with StopRequest().handling_signals() as stop:
        places = [
            Place(
                name=task.name,
                begin=lambda task=task: begin(  # type: ignore[misc]
                    task, base, mesh, path, stop, workers=options.workers, memory=memory, progress=False
                ),
                memory=run_memory(with_settled_memory(task.config, properties, memory), properties),
                steps=task.config.run.steps,
                deadline=task.deadline,
            )
            for task in begun
        ]
        dtype = max(
            (dtype_on(task.config.run.dtype, properties) for task in tasks), key=lambda each: each == torch.bfloat16
        )
        with driven(output, "step", sum(place.steps for place in places), options.progress) as run:
            schedule = Schedule(
                places=places,
                shared=parameter_bytes(preset.model, dtype),
                memory=memory,
                run=run,
                turns=options.schedule,
            )
            try:
                schedule.carry_out(stop.is_requested)
            finally:
                write_overview(tasks, places, run)
        print_summary(f"all fine-tunings on one page: {output / PAGE_FILE}")
        return run.exit_code or (stop.exit_code if any(place.state == "stopped" for place in places) else 0)


def _has_result(task: Task, base: FrozenParameters) -> bool:
    """Return whether a fine-tuning has ended before. Raise `ConfigError` if it had other settings."""
    result = read_result(task.output)
    if result is None:
        return False
    require_same_finetuning(task.output, trained_numbers(task.config, base), task.config.run)
    progress = RunProgress(step=result.steps, best_step=result.best_step)
    return result.steps >= task.config.run.steps or progress.is_settled(task.config.run.evaluation)


def _tell(output: Path) -> None:
    result = read_result(output)
    assert result is not None
    change = result.change("lddt_ca")
    changed = "" if change is None else f", CA-lDDT of {len(result.targets)} held-out targets {signed(change)}"
    print_summary(f"{result.name}: {result.steps} steps{changed} -> {output / PAGE_FILE}")
