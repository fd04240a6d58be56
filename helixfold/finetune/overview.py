"""Table and page of several fine-tunings: how each stands, what it came to, and the curves of all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_pipeline.errors import InputError
from helixfold.finetune.finetuning import Task
from helixfold.finetune.result import PAGE_FILE, FinetuningResult, read_result, signed
from helixfold.finetune.schedule import Place
from helixfold.report.finetuning import PageTable, compared_curves, write_finetuning_page
from helixfold.report.page import counted, duration
from helixfold.training.log import LOG_FILE, TrainingHistory, read_log
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
