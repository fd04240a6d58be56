"""Carry out `helixfold finetune --table`: read the table, learn with and without changes of the network, and tell."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from torch import Tensor

from data_pipeline.complexes.pipeline import target_features
from data_pipeline.complexes.sequence_files import read_table_targets
from data_pipeline.errors import InputError
from data_pipeline.files import os_errors_as_input_errors
from helixfold.execution.available import available_memory
from helixfold.execution.device import limit_threads, pick_device
from helixfold.finetune.adapted import FrozenParameters
from helixfold.finetune.base import base_file, load_base
from helixfold.finetune.finetuning import ADAPTER_FILE
from helixfold.finetune.jobs import config_of
from helixfold.finetune.memory import with_settled_memory
from helixfold.finetune.options import FinetuneOptions, TaskOptions
from helixfold.finetune.result import PAGE_FILE
from helixfold.finetune.task_heads import published_binder_head
from helixfold.finetune.task_page import write_task_page
from helixfold.finetune.task_run import (
    LearntTask,
    Task,
    frozen_numbers,
    judged,
    save_head,
    with_adapted_network,
    with_frozen_network,
)
from helixfold.finetune.task_table import read_table
from helixfold.model_input import ModelInput, model_input
from helixfold.ops.card import card_of
from helixfold.parallel.mesh import Mesh
from helixfold.predict.targets import target_of, with_search_files
from helixfold.presets import Preset
from helixfold.weights.adapters import AdapterCard, save_adapter
from helixfold.write.results import to_json, write_file

HEAD_FILE, TABLE_FILE, RESULT_FILE = "task_head.safetensors", "predictions.tsv", "task.json"
# Steps of the head and the network together, unless they are given.
_STEPS = 200


def finetune_task(table: Path, options: FinetuneOptions, values: Mapping[str, object], output: Path) -> int:
    """Learn what the table says, with a head on the frozen network and, for lora, one that changes the network, too.

    Raise `InputError` for wrong input, before anything is written.
    """
    limit_threads()
    what = options.task
    rows = read_table(table, what.task)
    if options.what.adapter == "full":
        raise InputError("--table takes --adapter lora, or heads for a head on the frozen network alone")
    preset, path = base_file(options.model, options.weights)
    device = pick_device(options.device)
    config = config_of(
        preset, {"steps": _STEPS, **{name: value for name, value in values.items() if value is not None}}
    )
    config = with_settled_memory(config, card_of(device), available_memory(device))
    task = Task(
        kind=what.task,
        reads=what.head or ("pae" if what.task == "binder" else "single"),
        rows=rows,
        inputs=_inputs(table, what, preset),
        preset=preset,
        config=config,
    )
    base = load_base(preset, path, device)
    numbers = frozen_numbers(task, base.model(), device, "frozen network")
    learnt = {"frozen network": with_frozen_network(task, numbers)}
    changes: dict[str, Tensor] = {}
    if options.what.adapter == "lora":
        begin = learnt["frozen network"].head
        learnt["adapted network"], changes = with_adapted_network(task, base, begin, Mesh.alone(device))
    if task.reads == "pae":
        learnt["published function of the error"] = judged(task, published_binder_head(), numbers)
    with os_errors_as_input_errors(output, "cannot be written"):
        output.mkdir(parents=True, exist_ok=True)
        _write(output, task, base, learnt, changes)
    for name, each in learnt.items():
        score = each.scores.deciding
        shown = "is not defined" if score is None else f"{score.value:.3f} ({score.low:.3f} to {score.high:.3f})"
        print(f"{name}: {'AUC' if task.kind != 'regression' else 'Spearman correlation'} of held-out rows {shown}")
    print(f"-> {output / PAGE_FILE}")
    return 0


def _inputs(table: Path, what: TaskOptions, preset: Preset) -> list[ModelInput]:
    """Return what the network reads of each row, with the alignments of the option."""
    delimiter = "\t" if table.name.lower().removesuffix(".gz").endswith(".tsv") else ","
    targets = [target_of(read) for read in read_table_targets(table, delimiter, "name")]
    return [model_input(target_features(target), preset) for target in with_search_files(targets, what.msa, ())]


def _write(
    output: Path, task: Task, base: FrozenParameters, learnt: Mapping[str, LearntTask], changes: Mapping[str, Tensor]
) -> None:
    name = "adapted network" if changes else "frozen network"
    best = learnt[name]
    if changes:
        card = AdapterCard(
            kind="lora",
            base=base.sha256,
            base_name=base.name,
            low_rank=task.config.low_rank,
            training={"task": task.kind, "reads": task.reads, "rows": len(task.rows), "seed": task.config.run.seed},
            scores=asdict(best.scores),
        )
        save_adapter(output / ADAPTER_FILE, changes, card)
    save_head(output / HEAD_FILE, best.head, task, best.scores)
    write_file(output / TABLE_FILE, _table(task, learnt).encode())
    scores = {each: asdict(found.scores) for each, found in learnt.items()}
    write_file(output / RESULT_FILE, to_json({"task": task.kind, "reads": task.reads, "scores": scores}, indent=1))
    write_task_page(output / PAGE_FILE, output.resolve().name, task, learnt)


def _table(task: Task, learnt: Mapping[str, LearntTask]) -> str:
    """Return the predictions of all rows as a table, those of each way to learn in a column."""
    header = ["name", "split", "value", *(name.replace(" ", "_") for name in learnt)]
    lines = ["\t".join(header)]
    for number, row in enumerate(task.rows):
        value = "" if row.value is None else f"{row.value:g}"
        predicted = (f"{float(np.round(each.predicted[number], 6)):g}" for each in learnt.values())
        lines.append("\t".join([row.name, row.split, value, *predicted]))
    return "".join(f"{line}\n" for line in lines)
