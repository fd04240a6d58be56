"""Run one fine-tuning, or several that take turns, from options to an exit code, and write their table and page."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from data_pipeline.errors import InputError
from data_pipeline.extras import require
from data_pipeline.files import unmoved_directory
from helixfold.execution.available import available_memory
from helixfold.execution.device import dtype_on, limit_threads, pick_device
from helixfold.finetune.adapted import FrozenParameters
from helixfold.finetune.base import base_file, load_base
from helixfold.finetune.finetuning import Finetuning, Task, require_same_run, trained_numbers
from helixfold.finetune.jobs import config_of, read_tasks
from helixfold.finetune.memory import parameter_bytes, run_memory, with_settled_memory
from helixfold.finetune.options import FinetuneOptions
from helixfold.finetune.result import PAGE_FILE, FinetuningResult, read_result, signed
from helixfold.finetune.schedule import Place, Schedule
from helixfold.finetune.settings import FinetuneConfig
from helixfold.ops.card import Card, card_of
from helixfold.parallel.mesh import Mesh, join
from helixfold.planning.size import gib
from helixfold.report.finetuning import PageTable, compared_curves, write_finetuning_page
from helixfold.report.page import counted, duration
from helixfold.training.checkpoint_files import checkpoint_steps
from helixfold.training.forecast import memory_per_rank
from helixfold.training.log import LOG_FILE, TrainingHistory, read_log
from helixfold.training.progress import RunProgress, print_message
from helixfold.training.run import FAILED, exit_code_of, usual_workers
from helixfold.training.run_dtype import with_settled_dtype
from helixfold.training.stopping import StopRequest
from helixfold.weights import demonstration
from helixfold.write.results import write_file

TABLE_FILE = "finetuning.tsv"
_COLUMNS = (
    *("name", "adapter", "state", "steps", "best_step", "held_out_targets"),
    *("lddt_ca_before", "lddt_ca_after", "lddt_ca_change", "seconds"),
)


def write_overview(output: Path, tasks: Sequence[Task], places: Sequence[Place[Any]]) -> None:
    """Write `finetuning.tsv` and `finetuning.html` of all fine-tunings of a file into the output directory."""
    by_name = {place.name: place for place in places}
    results = {task.name: read_result(task.output) for task in tasks}
    rows = [_row(task, by_name.get(task.name), results[task.name]) for task in tasks]
    lines = ["\t".join(_COLUMNS), *("\t".join(row) for row in rows)]
    write_file(output / TABLE_FILE, "".join(f"{line}\n" for line in lines).encode())
    states = [row[_COLUMNS.index("state")] for row in rows]
    histories = {task.name: history for task in tasks if (history := _history(task.output)) is not None}
    reasons = [(place.name, place.reason) for place in places if place.reason]
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
            PageTable(title="What ended", columns=["name", "reason"], rows=reasons),
        ],
        picture=compared_curves(histories) if histories else None,
    )


def _row(task: Task, place: Place[Any] | None, result: FinetuningResult | None) -> list[str]:
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


def values_of(options: FinetuneOptions) -> dict[str, Any]:
    """Return the options that a job in a file of several may have, too."""
    what = options.what
    return {
        "adapter": what.adapter,
        "rank": what.rank,
        "alpha": what.alpha,
        "targets": what.targets,
        "rank_stabilised": what.rank_stabilised,
        "decomposed": what.decomposed,
        "steps": options.steps,
        "learning_rate": options.learning_rate,
        "seed": options.seed,
        "settings": options.settings,
    }


def settings_lines(options: FinetuneOptions) -> list[str]:
    """Return all settings of a fine-tuning, as `--show-settings` prints them."""
    preset, _ = base_file(options.model, options.weights)
    return [f"{name}={value}" for name, value in config_of(preset, values_of(options)).flat().items()]


def forecast_of(options: FinetuneOptions) -> list[str]:
    """Return the lines of a dry run: what takes memory in a fine-tuning with these options."""
    preset, _ = base_file(options.model, options.weights)
    device = pick_device(options.device)
    memory = options.several.memory or available_memory(device)
    return forecast_lines(config_of(preset, values_of(options)), card_of(device), memory)


def forecast_lines(config: FinetuneConfig, card: Card, memory: int) -> list[str]:
    """Return what takes how much memory in a fine-tuning on a card."""
    config = with_settled_memory(config, card, memory)
    found, dtype = run_memory(config, card), dtype_on(config.run.dtype, card)
    shared = 0 if config.adapter == "full" else parameter_bytes(config.run.model, dtype)
    everything = run_memory(replace(config, adapter="full"), card)
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
    config = config_of(preset, values_of(options))

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
            run = begin(task, load_base(preset, path, mesh.device), mesh, path, workers=options.workers)
            with unmoved_directory(output) if mesh.is_first else nullcontext():
                for _ in run.turns(stop):
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
        config = with_settled_memory(config, card_of(mesh.device), there, mesh.layout)
    return Finetuning(
        replace(task, config=config),
        base,
        mesh,
        descends_from=demonstration.ancestor(path),
        workers=usual_workers(mesh.device) if workers is None else workers,
        progress=progress,
    )


@dataclass(frozen=True, kw_only=True)
class Turning:
    """A fine-tuning in a schedule, which all of its runs are asked to leave together."""

    run: Finetuning
    stop: StopRequest

    @property
    def is_finished(self) -> bool:
        return self.run.is_finished

    def turns(self) -> Iterator[int]:
        return self.run.turns(self.stop)

    def release(self) -> None:
        self.run.release()


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
    mesh, card = Mesh.alone(device), card_of(device)
    memory = options.several.memory or available_memory(device)
    base = load_base(preset, path, device)
    begun = [task for task in tasks if not _has_result(task, base)]
    with StopRequest().handling_signals() as stop:
        places = [
            Place(
                name=task.name,
                begin=lambda task=task: Turning(  # type: ignore[misc]
                    run=begin(task, base, mesh, path, workers=options.workers, memory=memory, progress=False), stop=stop
                ),
                memory=run_memory(with_settled_memory(task.config, card, memory), card),
                steps=task.config.run.steps,
                deadline=task.deadline,
            )
            for task in begun
        ]
        dtype = max((dtype_on(task.config.run.dtype, card) for task in tasks), key=lambda each: each == torch.bfloat16)
        schedule = Schedule(
            places=places,
            shared=parameter_bytes(preset.model, dtype),
            memory=memory,
            turns=options.several.turns,
            say=print_message,
        )
        output.mkdir(parents=True, exist_ok=True)
        try:
            with unmoved_directory(output):
                schedule.carry_out(stop.is_requested)
        finally:
            write_overview(output, tasks, places)
        print(f"all fine-tunings on one page: {output / PAGE_FILE}")
        if any(place.state in ("diverged", "failed") for place in places):
            return FAILED
        return stop.exit_code if any(place.state == "stopped" for place in places) else 0


def _has_result(task: Task, base: FrozenParameters) -> bool:
    """Return whether a fine-tuning has ended before. Raise `ConfigError` if it had other settings."""
    result = read_result(task.output)
    if result is None:
        return False
    require_same_run(task.output, trained_numbers(task.config, base), task.config.run)
    progress = RunProgress(step=result.steps, best_step=result.best_step)
    return result.steps >= task.config.run.steps or progress.is_settled(task.config.run.evaluation)


def _tell(output: Path) -> None:
    result = read_result(output)
    assert result is not None
    change = result.change("lddt_ca")
    changed = "" if change is None else f", CA-lDDT of {len(result.targets)} held-out targets {signed(change)}"
    print(f"{result.name}: {result.steps} steps{changed} -> {output / PAGE_FILE}")
