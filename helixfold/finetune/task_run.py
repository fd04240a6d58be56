"""Learn a value of whole targets from a table: a head on the frozen network, and one that changes the network, too."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from data_pipeline.datasets.chain_sampling import StreamUse, random_stream
from data_pipeline.errors import InputError
from data_pipeline.files import atomic_write
from helixfold.analysis.intervals import Estimate
from helixfold.analysis.rank_scores import auc, spearman, with_interval
from helixfold.execution.dtypes import dtype_on
from helixfold.execution.slabs import Slabs
from helixfold.finetune.adapted import FrozenParameters, LowRankTrained
from helixfold.finetune.settings import FinetuneConfig
from helixfold.finetune.task_heads import HeadInput, LinearHead, fit, loss_of, stacked, summary
from helixfold.finetune.task_table import TaskKind, TaskRow
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Recycled
from helixfold.model.update import Executor
from helixfold.model_input import ModelInput, batch_of, draw
from helixfold.ops.card import card_of
from helixfold.parallel.mesh import Mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.presets import Preset


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


def frozen_numbers(task: Task, model: AlphaFold, device: torch.device, label: str) -> Float[Tensor, "n f"]:
    """Return what a head reads of every row, by a network that is not trained further."""
    model.eval()
    with torch.no_grad():
        bar = tqdm(range(len(task.rows)), desc=label, unit="target", disable=None)
        return stacked([_numbers(task, number, model, Slabs(), device, position=0) for number in bar])


def with_frozen_network(task: Task, numbers: Float[Tensor, "n f"]) -> LearntTask:
    """Fit a head to the rows to learn from, given what it reads of all rows."""
    train = task.of("train")
    head = fit(numbers[train], task.values(train), task.kind, task.config.run.seed).head
    return judged(task, head, numbers)


def with_adapted_network(
    task: Task, base: FrozenParameters, begin: LinearHead, mesh: Mesh
) -> tuple[LearntTask, dict[str, Tensor]]:
    """Train low-rank changes of the network and a head together, from a fitted head on.

    Return what was learnt, and the moving averages of the changes by name.
    """
    config, train = task.config.run, task.of("train")
    trained = LowRankTrained(base, task.config.low_rank, seed=config.seed)
    head = LinearHead(len(begin.weight)).to(mesh.device)
    head.load_state_dict(begin.state_dict())
    trained.numbers.add_module("task_head", head)
    dtype = dtype_on(config.dtype, card_of(mesh.device))
    optimizer = trained.optimizer(config.optimizer, dtype, averages=True)
    run = parallelize(trained.model.train(), mesh, config.recompute)
    values = torch.tensor([row.value or 0.0 for row in task.rows])
    skipped = 0
    for step in tqdm(range(config.steps), desc="training", unit="step", disable=None):
        rng = random_stream(config.seed, StreamUse.DROPOUT, step, 0)
        chosen = rng.choice(train, min(config.batch_size, len(train)), replace=False)
        for part, number in enumerate(chosen):
            torch.manual_seed(int(rng.integers(2**62)))
            trained.apply()
            read = _numbers(task, int(number), trained.model, run, mesh.device, position=1 + step, part=part)
            predicted = head(read[None])
            optimizer.backward(loss_of(predicted, values[int(number)][None].to(mesh.device), task.kind))
            optimizer.collect()
        report = optimizer.step(config.optimizer.rate(step), micro_batches=len(chosen))
        skipped = skipped + 1 if report.skipped else 0
        if skipped > config.max_skipped:
            raise InputError(
                f"{skipped} steps in a row had a loss or gradient that is not finite; lower --learning-rate"
            )
    averages = optimizer.averaged()
    learnt = LinearHead(len(begin.weight))
    learnt.load_state_dict({**begin.state_dict(), **_below(averages, "task_head.")})
    changes = {name: tensor for name, tensor in averages.items() if not name.startswith("task_head.")}
    trained.release()
    with torch.device("meta"):
        model = AlphaFold(base.config)
    model.load_state_dict(trained.state(changes), assign=True)
    return judged(task, learnt, frozen_numbers(task, model, mesh.device, "adapted network")), changes


def save_head(path: Path, head: LinearHead, task: Task, scores: TaskScores) -> None:
    """Write a head as safetensors, with what it reads and how well it did."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    about = {"kind": task.kind, "reads": task.reads, "model": task.preset.name, "scores": json.dumps(asdict(scores))}
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, metadata={"format": "helixfold task head", "version": "1", **about})


def judged(task: Task, head: LinearHead, numbers: Float[Tensor, "n f"]) -> LearntTask:
    """Return what a head predicts for every row from what it reads of each, and its scores on held-out rows."""
    with torch.no_grad():
        predicted = head(numbers).numpy().astype(np.float64)
    test = task.of("test")
    scores = TaskScores.of(predicted[test].tolist(), task.values(test).tolist(), task.kind)
    shown = 1 / (1 + np.exp(-predicted)) if task.kind != "regression" else predicted
    return LearntTask(head=head, predicted=shown, scores=scores)


def _numbers(
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


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
