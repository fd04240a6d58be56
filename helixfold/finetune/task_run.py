"""Tasks: values of whole targets in a table, what heads read of each target, and how well they predict the values."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from helixfold.analysis.intervals import Estimate
from helixfold.analysis.rank_scores import auc, spearman, with_interval
from helixfold.execution.device import dtype_on
from helixfold.execution.slabs import Slabs
from helixfold.finetune.adapted import FrozenParameters
from helixfold.finetune.settings import FinetuneConfig
from helixfold.finetune.task_heads import HeadInput, LinearHead, fit, stacked, summary
from helixfold.finetune.task_table import TaskKind, TaskRow
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Recycled
from helixfold.model.update import Executor
from helixfold.model_input import ModelInput, batch_of, draw
from helixfold.ops.card import card_of
from helixfold.presets import Preset
from helixfold.weights.adapters import changed_parameters
from helixfold.weights.tensor_file import write_tensors


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task to learn: rows of a table with their inputs, the input of the head, and how the network is trained."""

    kind: TaskKind
    reads: HeadInput
    rows: Sequence[TaskRow]
    inputs: Sequence[ModelInput]  # of the rows
    preset: Preset
    config: FinetuneConfig

    def of(self, *splits: str) -> list[int]:
        """Return the numbers of the rows of these splits."""
        return [number for number, row in enumerate(self.rows) if row.split in splits]

    def digest(self) -> str:
        """Return the SHA-256 of what is learnt from: the rows, and what the network reads of each."""
        digest = hashlib.sha256()
        for row, given in zip(self.rows, self.inputs, strict=True):
            digest.update(f"{row.name}\t{row.sequence}\t{row.value}\t{row.split}\n".encode())
            for field in fields(given.features):
                if isinstance(array := getattr(given.features, field.name), np.ndarray):
                    digest.update(f"{field.name} {array.dtype} {array.shape}\n".encode())
                    digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def values(self, numbers: Sequence[int]) -> Float[Tensor, " n"]:
        """Return the values of rows that have one."""
        return torch.tensor([self.rows[number].value for number in numbers], dtype=torch.float32)


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """How well held-out rows are predicted, with 95 % intervals: AUC of classes, Spearman's correlation of values."""

    auc: Estimate | None
    spearman: Estimate | None

    @classmethod
    def of(cls, predicted: Sequence[float], true: Sequence[float], kind: TaskKind) -> "TaskScores":
        """Score predictions of held-out rows."""
        if kind == "regression":
            return cls(auc=None, spearman=with_interval(spearman, predicted, true))
        return cls(auc=with_interval(auc, predicted, [value > 0.5 for value in true]), spearman=None)

    @property
    def deciding(self) -> Estimate | None:
        """Return the score of the kind of task."""
        return self.auc or self.spearman


@dataclass(frozen=True, kw_only=True)
class LearntTask:
    """A head, what it predicts for every row, and its scores on held-out rows."""

    head: LinearHead
    predicted: Float[np.ndarray, " n"]
    scores: TaskScores


def head_inputs(task: Task, model: AlphaFold, device: torch.device, label: str) -> Float[Tensor, "n f"]:
    """Return what a head reads of every row, by a network that is not trained further."""
    model.eval()
    with torch.no_grad():
        bar = tqdm(range(len(task.rows)), desc=label, unit="target", disable=None)
        return stacked([head_input(task, number, model, Slabs(), device, position=0) for number in bar])


def with_frozen_network(task: Task, numbers: Float[Tensor, "n f"]) -> LearntTask:
    """Fit a head to the rows to learn from, given what it reads of all rows."""
    train = task.of("train")
    head = fit(numbers[train], task.values(train), task.kind, task.config.run.seed).head
    return judged(task, head, numbers)


def with_adapted_network(
    task: Task, base: FrozenParameters, head: LinearHead, changes: Mapping[str, Tensor], device: torch.device
) -> LearntTask:
    """Return what a head predicts from a network with low-rank changes of the frozen parameters."""
    merged = {**base.state, **changed_parameters(base.state, changes, task.config.low_rank)}
    with torch.device("meta"):
        model = AlphaFold(base.config)
    model.load_state_dict(merged, assign=True)
    return judged(task, head, head_inputs(task, model, device, "adapted network"))


def save_head(path: Path, head: LinearHead, task: Task, scores: TaskScores) -> None:
    """Write a head as safetensors, with what it reads and how well it did."""
    about = {"kind": task.kind, "reads": task.reads, "model": task.preset.name, "scores": json.dumps(asdict(scores))}
    write_tensors(path, head.state_dict(), {"format": "helixfold task head", "version": "1", **about})


def judged(task: Task, head: LinearHead, numbers: Float[Tensor, "n f"]) -> LearntTask:
    """Return what a head predicts for every row from what it reads of each, and its scores on held-out rows."""
    with torch.no_grad():
        predicted = head(numbers).numpy().astype(np.float64)
    test = task.of("test")
    scores = TaskScores.of(predicted[test].tolist(), task.values(test).tolist(), task.kind)
    shown = 1 / (1 + np.exp(-predicted)) if task.kind != "regression" else predicted
    return LearntTask(head=head, predicted=shown, scores=scores)


def head_input(
    task: Task, number: int, model: AlphaFold, run: Executor, device: torch.device, *, position: int, part: int = 0
) -> Float[Tensor, " f"]:
    """Return what a head reads of a row after all passes, of which the last has gradients where they are enabled."""
    given, dtype = task.inputs[number], dtype_on(task.config.run.dtype, card_of(device))
    passes = task.config.run.example.max_passes
    seed = task.config.run.seed
    previous: Recycled | None = None
    with torch.no_grad():
        for cycle in range(passes - 1):
            batch = batch_of(draw(given, task.preset, [seed, position, part, cycle]), task.preset, device)
            previous = model.fold(run, [batch], previous, dtype).recycled()
    batch = batch_of(draw(given, task.preset, [seed, position, part, passes - 1]), task.preset, device)
    folded = model.fold(run, [batch], previous, dtype)
    return summary(model, folded, torch.from_numpy(given.chain_index).to(device), task.reads)
