"""Run one fine-tuning, or several that take turns, from options to an exit code, and write their table and page.

The schedule starts fine-tunings as memory permits and chooses which one runs the next step.
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
from data_pipeline.io.files import remove_partial_files, unmoved_directory
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
from helixfold.runtime.standard_streams import optional_output, print_note, print_summary
from helixfold.training.checkpoint_files import checkpoint_steps
from helixfold.training.estimate import memory_per_rank
from helixfold.training.finetune.adapted import FrozenParameters, base_file, load_base
from helixfold.training.finetune.finetuning import (
    ADAPTER_FILE,
    Finetuning,
    Task,
    adapter_facts,
    require_same_finetuning,
)
from helixfold.training.finetune.jobs import config_of, read_tasks
from helixfold.training.finetune.memory import RunMemory, fitting, parameter_bytes, run_memory, with_settled_memory
from helixfold.training.finetune.options import FinetuneOptions
from helixfold.training.finetune.result import PAGE_FILE, FinetuningResult, read_result, signed
from helixfold.training.finetune.settings import FinetuneConfig
from helixfold.training.progress import RunProgress, print_message
from helixfold.training.run import exit_code_of, print_weights, usual_workers
from helixfold.training.run_dtype import with_settled_dtype
from helixfold.training.stopping import StopRequest
from helixfold.training.trainer import DivergedError
from helixfold.weights import demonstration

Turns = Literal["steps", "deadline"]
# States of a fine-tuning: it waits for memory, takes turns, has finished, had too many losses that are not finite,
# failed for another reason, or was stopped and can be resumed.
State = Literal["waiting", "running", "finished", "diverged", "failed", "stopped"]


@dataclass(kw_only=True)
class ScheduledRun:
    """A fine-tuning in a schedule, with its state and progress. `begin` creates the run once there is memory for it.

    `steps` is the total number of steps, `completed` the number of completed ones including earlier commands, and
    `new_steps` the number since the schedule started. `share` is the number of turns by which runs are compared; a new
    run starts with the smallest current one. `deadline` is in seconds from the start of the schedule, and `seconds` the
    time of the run's own steps.
    """

    name: str
    begin: Callable[[], Finetuning]
    memory: RunMemory
    steps: int
    deadline: float | None = None
    state: State = "waiting"
    new_steps: int = 0
    share: int = 0
    completed: int = 0
    seconds: float = 0.0
    finetuning: Finetuning | None = None
    turns: Iterator[int] | None = None

    def slack(self, now: float) -> float:
        """Return the seconds that would be left before the deadline if this run took all turns from `now` on.

        `now` is in seconds since the start of the schedule. The result is infinite without a deadline, and negative if
        the run would be late.
        """
        if self.deadline is None:
            return float("inf")
        step_seconds = self.seconds / self.new_steps if self.new_steps else 0.0
        return self.deadline - now - step_seconds * (self.steps - self.completed)


@dataclass(kw_only=True)
class Schedule:
    """Fine-tunings that take turns on one device, one step at a time.

    As many are in progress as fit into `memory` bytes, of which frozen parameters take `shared`. `turns` is the order:
    "steps" prefers the run with the fewest turns, and "deadline" the one with the least slack. `progress` counts the
    steps of all fine-tunings, and records failures. `clock` returns seconds. `max_concurrent` is the largest number of
    fine-tunings that were in progress at the same time. The result of a run does not depend on the other runs or on the
    order of turns.
    """

    runs: Sequence[ScheduledRun]
    shared: int
    memory: int
    progress: Run
    turns: Turns = "steps"
    clock: Callable[[], float] = time.monotonic
    max_concurrent: int = 0
    _start: float = field(default=0.0)

    def carry_out(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Take turns until all runs have ended. After a stop request, each started run saves at its turn and stops."""
        self._start = self.clock()
        while True:
            if not is_stopped():
                self._begin_waiting()
            running = [run for run in self.runs if run.state == "running"]
            self.max_concurrent = max(self.max_concurrent, len(running))
            if not running:
                break
            self._turn(self._next(running))
        for run in self.runs:
            if run.state == "waiting":
                run.state = "stopped"

    def _begin_waiting(self) -> None:
        """Begin waiting runs, in order, as far as memory permits."""
        waiting = [run for run in self.runs if run.state == "waiting"]
        running = [run for run in self.runs if run.state == "running"]
        running_memory = [run.memory for run in running]
        count = fitting([run.memory for run in waiting], running_memory, self.shared, self.memory)
        share = min((run.share for run in running), default=0)
        if not count and not running and waiting:
            # Its checkpoint policy was chosen to fit without other runs, so it is tried despite the estimate.
            count = 1
        for run in waiting[:count]:
            with self.progress.item(run.name, run.steps, continues=True):
                run.finetuning = run.begin()
                run.turns = run.finetuning.turns()
                run.state, run.share = "running", share
                print_note(f"{run.name}: begins")
            if run.name in self.progress.failures:
                self._end(run, "failed")

    def _next(self, running: Sequence[ScheduledRun]) -> ScheduledRun:
        """Return the run that takes the next turn."""
        if self.turns == "deadline":
            now = self.clock() - self._start
            return min(running, key=lambda run: (run.slack(now), run.share))
        return min(running, key=lambda run: run.share)

    def _turn(self, run: ScheduledRun) -> None:
        """Let a run compute one step, and write its result if that was the last one."""
        assert run.turns is not None
        assert run.finetuning is not None
        start = self.clock()
        state: State = "failed"
        with self.progress.item(run.name, run.steps - run.completed, continues=True):
            try:
                completed = next(run.turns)
                self.progress.skip(completed - run.completed - 1)  # steps of an earlier command
                self.progress.report(run.name, f"step {completed}")
                run.completed, run.new_steps, run.share = completed, run.new_steps + 1, run.share + 1
                if run.finetuning.is_finished:
                    next(run.turns)  # Writes its result and ends, so that its memory is freed now.
                run.finetuning.release()
            except StopIteration:
                self._end(run, "finished" if run.finetuning.is_finished else "stopped")
            except DivergedError:
                state = "diverged"
                raise
        if run.name in self.progress.failures:
            self._end(run, state)
        run.seconds += self.clock() - start

    def _end(self, run: ScheduledRun, state: State) -> None:
        """Remove a run from the schedule and free its memory for the next one."""
        run.state = state
        run.turns = run.finetuning = None
        gc.collect()  # The objects of a run refer to each other.
        if run.name not in self.progress.failures:
            print_note(f"{run.name}: {state} after {counted(run.completed, 'step')}")
        if state == "finished":
            self.progress.skip(run.steps - run.completed)
            self.progress.report(run.name, state, 0)


TABLE_FILE = "finetuning.tsv"  # in the output directory of several fine-tunings
_TABLE_COLUMNS = (
    *("name", "adapter", "state", "steps", "best_step", "held_out_targets"),
    *("lddt_ca_before", "lddt_ca_after", "lddt_ca_change", "seconds"),
)


def write_overview(tasks: Sequence[Task], runs: Sequence[ScheduledRun], progress: Run) -> None:
    """Write `finetuning.tsv` and `finetuning.html`, which cover all fine-tunings, into the output directory."""
    output = progress.output
    by_name = {run.name: run for run in runs}
    results = {task.name: read_result(task.output) for task in tasks}
    rows = [_row(task, by_name.get(task.name), results[task.name]) for task in tasks]
    lines = ["\t".join(_TABLE_COLUMNS), *("\t".join(row) for row in rows)]
    write_file(output / TABLE_FILE, "".join(f"{line}\n" for line in lines).encode())
    states = [row[_TABLE_COLUMNS.index("state")] for row in rows]
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
            "of their steps": duration(sum(run.seconds for run in runs)),
        },
        tables=[
            PageTable(title="Fine-tunings", columns=[name.replace("_", " ") for name in _TABLE_COLUMNS], rows=rows),
            PageTable(
                title="Change of CA-lDDT on held-out targets, with 95 % interval",
                columns=["name", "change"],
                rows=changes,
            ),
            PageTable(title="Failures", columns=["name", "reason"], rows=[*progress.failures.items()]),
        ],
        picture=compared_curves(histories) if histories else None,
    )


def _row(task: Task, run: ScheduledRun | None, result: FinetuningResult | None) -> list[str]:
    """Return the row of a fine-tuning in the table; `run` is None if it finished in an earlier command."""
    state = "finished" if run is None or (result is not None and run.state == "finished") else run.state
    scores = ["", "", ""]
    if result is not None and result.targets:
        means = result.means()["lddt_ca"]
        scores = [f"{means['before']:.4f}", f"{means['after']:.4f}", f"{means['change']['mean']:+.4f}"]
    steps = result.steps if result is not None else 0 if run is None else run.completed
    return [
        task.name,
        task.config.adapter,
        state,
        str(steps),
        "" if result is None or result.best_step is None else str(result.best_step),
        "" if result is None else str(len(result.targets)),
        *scores,
        "" if run is None else f"{run.seconds:.1f}",
    ]


def _history(directory: Path) -> TrainingHistory | None:
    """Return the log of the training in a directory; None if it cannot be read."""
    try:
        return read_log(directory / LOG_FILE)
    except (InputError, OSError):
        return None


def settings_lines(options: FinetuneOptions) -> list[str]:
    """Return all settings of a fine-tuning, as `--show-settings` prints them."""
    preset, _ = base_file(options.model, options.weights)
    return [f"{name}={value}" for name, value in config_of(preset, vars(options)).flat().items()]


def dry_run_lines(options: FinetuneOptions) -> list[str]:
    """Return the lines of a dry run: the estimated memory of a fine-tuning with these options.

    It is for `options.memory` bytes, by default the free memory.
    """
    preset, _ = base_file(options.model, options.weights)
    device = pick_device(options.device)
    memory = options.memory or available_memory(device)
    return _memory_lines(config_of(preset, vars(options)), properties_of(device), memory)


def _memory_lines(config: FinetuneConfig, properties: DeviceProperties, memory: int) -> list[str]:
    """Return the lines of a dry run for these settings and `memory` bytes."""
    config = with_settled_memory(config, properties, memory)
    needs, dtype = run_memory(config, properties), dtype_on(config.run.dtype, properties)
    shared = 0 if config.adapter == "full" else parameter_bytes(config.run.model, dtype)
    full = run_memory(replace(config, adapter="full"), properties)
    return [
        f"frozen parameters     {gib(shared)}",
        f"trained parameters    {needs.state / 2**20:,.1f} MiB, of which gradients, moments and averages "
        f"{needs.optimizer / 2**20:,.1f} MiB ({needs.optimizer / full.optimizer:.2%} of a full fine-tuning)",
        f"effective weights     {needs.effective / 2**20:,.1f} MiB",
        f"a step, forward and backward, {config.run.recompute}: {gib(needs.activations)}",
        f"total                 {gib(shared + needs.state + needs.effective + needs.activations)} of {gib(memory)}",
    ]


@optional_output()
def finetune(training_set: Path, options: FinetuneOptions, output: Path) -> int:
    """Run or resume one fine-tuning, print its result, and return an exit code like `helixfold train`.

    Under `torchrun` every process calls this function. Raise `InputError` for wrong input, before anything is written.
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
                _print_result(run, options)
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
    """Return a fine-tuning that is ready to run, with a dtype and checkpoint policies that suit the devices.

    `path` is the file with the base model's parameters, and `workers` the number of processes that load examples. Each
    "auto" policy (what to recompute in the backward pass) becomes the fastest that fits into `memory` bytes, by default
    the free memory.
    """
    run = with_settled_dtype(task.config.run, mesh, task.output / "checkpoints", print_message)
    config = replace(task.config, run=run)
    if not run.recompute.is_settled:
        if memory is None:
            # The estimate counts the frozen parameters, which are no longer in the free memory.
            memory = memory_per_rank(mesh) + parameter_bytes(run.model)
        config = with_settled_memory(config, properties_of(mesh.device), memory, mesh.layout)
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
    """Run or resume the fine-tunings in the file `jobs`, which take turns on one device.

    A page and a table of all are written into `output`. Return 0 if all finished, 1 if one diverged or failed, and the
    exit code of a signal that stopped them. Raise `InputError` for wrong input, before anything is written.
    """
    require("train", "biotite", "lmdb", "tensorboard", action="helixfold finetune")
    limit_threads()
    preset, path = base_file(options.model, options.weights)
    tasks = read_tasks(jobs, preset, output)
    device = pick_device(options.device)
    mesh, properties = Mesh.alone(device), properties_of(device)
    memory = options.memory or available_memory(device)
    base = load_base(preset, path, device)
    unfinished = [task for task in tasks if not _has_result(task, base)]
    with StopRequest().handling_signals() as stop:
        runs = [
            ScheduledRun(
                name=task.name,
                begin=lambda task=task: begin(  # type: ignore[misc]
                    task, base, mesh, path, stop, workers=options.workers, memory=memory, progress=False
                ),
                memory=run_memory(with_settled_memory(task.config, properties, memory), properties),
                steps=task.config.run.steps,
                deadline=task.deadline,
            )
            for task in unfinished
        ]
        dtype = max(
            (dtype_on(task.config.run.dtype, properties) for task in tasks), key=lambda each: each == torch.bfloat16
        )
        with driven(output, "step", sum(run.steps for run in runs), options.progress) as progress:
            remove_partial_files([output])  # each fine-tuning does the same in its own directory
            schedule = Schedule(
                runs=runs,
                shared=parameter_bytes(preset.model, dtype),
                memory=memory,
                progress=progress,
                turns=options.schedule,
            )
            try:
                schedule.carry_out(stop.is_requested)
            finally:
                write_overview(tasks, runs, progress)
        print_summary(f"all fine-tunings on one page: {output / PAGE_FILE}")
        return progress.exit_code or (stop.exit_code if any(run.state == "stopped" for run in runs) else 0)


def _has_result(task: Task, base: FrozenParameters) -> bool:
    """Return whether a fine-tuning has already finished. Raise `ConfigError` if it had other settings."""
    result = read_result(task.output)
    if result is None:
        return False
    require_same_finetuning(task.output, adapter_facts(task.config, base), task.config.run)
    progress = RunProgress(step=result.steps, best_step=result.best_step)
    return result.steps >= task.config.run.steps or progress.is_settled(task.config.run.evaluation)


def _print_result(run: Finetuning, options: FinetuneOptions) -> None:
    """Print the number of steps of a finished fine-tuning, its change of CA-lDDT, and how to predict with it."""
    output = run.files.directory
    result = read_result(output)
    assert result is not None
    change = result.change("lddt_ca")
    score = "" if change is None else f", CA-lDDT of {counted(len(result.targets), 'held-out target')} {signed(change)}"
    print_summary(f"{result.name}: {counted(result.steps, 'step')}{score} -> {output / PAGE_FILE}")
    base = (("--weights", options.weights), ("--model", options.model), ("--adapter", output / ADAPTER_FILE))
    adapter = [word for name, value in base if value is not None for word in (name, str(value))]
    print_weights(run.files, result.best_step, () if options.adapter == "full" else adapter)
