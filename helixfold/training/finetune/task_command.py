"""Learn a value of whole targets from a table (`helixfold finetune --table`): training, scores and page.

A head is fitted to the frozen network, and with LoRA also trained together with low-rank changes of the network. A run
that is killed and resumed gives bitwise the same result.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from tqdm import tqdm

from data_pipeline.features.complexes.pipeline import target_features
from data_pipeline.features.complexes.sequence_files import read_table_targets
from data_pipeline.features.complexes.target_files import target_of, with_search_files
from data_pipeline.io.errors import InputError
from data_pipeline.io.files import os_errors_as_input_errors, unmoved_directory
from data_pipeline.io.json_files import read_json
from data_pipeline.training_sets.chain_sampling import StreamUse, random_stream
from helixfold.analysis.intervals import Estimate
from helixfold.analysis.rank_scores import auc, roc, spearman, with_interval
from helixfold.execution.available import available_memory
from helixfold.execution.device import dtype_on, limit_threads, pick_device
from helixfold.execution.slabs import Slabs
from helixfold.folding.model_input import ModelInput, batch_of, draw, model_input
from helixfold.model.alphafold import AlphaFold
from helixfold.model.confidence import predicted_aligned_error
from helixfold.model.outputs import Folded
from helixfold.model.presets import Preset
from helixfold.model.update import Executor, as_tensor
from helixfold.ops.device_properties import properties_of
from helixfold.parallel.mesh import Mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.report.finetuning import PageTable, write_finetuning_page
from helixfold.report.page import counted
from helixfold.report.plots import new_figure, to_png
from helixfold.results.lock import only_run
from helixfold.results.writing import to_json, write_file
from helixfold.runtime.standard_streams import print_note, print_summary
from helixfold.training.checkpoint import Checkpoints
from helixfold.training.finetune.adapted import FrozenParameters, LowRankTrained, base_file, load_base
from helixfold.training.finetune.finetuning import ADAPTER_FILE, adapter_facts, require_same_finetuning
from helixfold.training.finetune.jobs import config_of
from helixfold.training.finetune.memory import with_settled_memory
from helixfold.training.finetune.options import FinetuneOptions, TaskOptions
from helixfold.training.finetune.result import PAGE_FILE
from helixfold.training.finetune.settings import FinetuneConfig
from helixfold.training.finetune.task_table import TaskKind, TaskRow, read_table
from helixfold.training.progress import print_message
from helixfold.training.run_dtype import with_settled_dtype
from helixfold.training.run_files import RunFiles
from helixfold.training.stopping import StopRequest
from helixfold.weights.adapters import AdapterCard, changed_parameters, save_adapter
from helixfold.weights.tensor_file import open_tensors, read_tensors, write_tensors

# Input of a head: the predicted error between chains, the single representation, or the pair representation.
HeadInput = Literal["pae", "single", "pair"]
# Unit of the error between chains in Å; slope and midpoint of the logistic function of this error in this unit by which
# Motmaen et al. 2023 classify binders (peptide and MHC of class I).
_ERROR_UNIT, SLOPE, MIDPOINT = 10.0, -7.9, 0.804
# Penalty strengths per row, among which cross-validation on the training rows chooses.
_PENALTIES = (1.0, 0.1, 0.01, 0.001)
# Folds of the cross-validation, and maximum number of iterations of a fit.
_NUM_FOLDS, _MAX_FIT_ITERATIONS = 5, 200


def head_features(model: AlphaFold, folded: Folded, chains: Int[Tensor, " r"], reads: HeadInput) -> Float[Tensor, " f"]:
    """Return the input features of a head for one folded target; `chains` is the chain index of each residue.

    For "pae", this is the mean predicted error over pairs of residues in different chains, in units of 10 Å. For
    "single", it is the mean and standard deviation of each channel over all residues, and for "pair" over pairs in
    different chains. In a target of one chain, all pairs are used. Raise `InputError` for "pae" if the model does not
    predict aligned errors.
    """
    if reads == "single":
        return _moments(folded.representations.single[0].float())
    different = chains[:, None] != chains[None]
    pairs = different if bool(different.any()) else torch.ones_like(different)
    pair = as_tensor(folded.representations.pair)
    if reads == "pair":
        return _moments(pair[0].float()[pairs])
    if model.heads.aligned_error is None:
        raise InputError("this model does not predict aligned errors; use one with _ptm, or --head single or pair")
    error, _ = predicted_aligned_error(model.heads.aligned_error(pair))
    return error[0][pairs].mean()[None] / _ERROR_UNIT


def _moments(values: Float[Tensor, "n c"]) -> Float[Tensor, " f"]:
    """Return the mean and the standard deviation of each channel over the rows, one after the other."""
    return torch.cat([values.mean(0), values.std(0, correction=0)])


class LinearHead(nn.Module):
    """Linear map from standardised features to a value, or to the logit of a class.

    `inputs` is the number of features. `mean` and `deviation` standardise them and are not trained. Weights are zeros
    at first.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("deviation", torch.ones(inputs))
        self.weight = nn.Parameter(torch.zeros(inputs))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, features: Float[Tensor, "*n f"]) -> Float[Tensor, "*n"]:
        """Return the value or the logit of each target."""
        return (((features - self.mean) / self.deviation) * self.weight).sum(-1) + self.bias[0]


def published_binder_head() -> LinearHead:
    """Return Motmaen et al.'s logistic function of the predicted error between chains as a head.

    Its only feature is the mean error in units of 10 Å; its output is the logit of a binder.
    """
    head = LinearHead(1)
    with torch.no_grad():
        head.weight.fill_(SLOPE)
        head.bias.fill_(-SLOPE * MIDPOINT)
    return head


def fit(features: Float[Tensor, "n f"], values: Float[Tensor, " n"], kind: TaskKind, seed: int = 0) -> LinearHead:
    """Fit a linear (regression) or logistic head to the values of all rows of `features`.

    The strength of its L2 penalty is chosen by five-fold cross-validation. `seed` divides the rows into folds.
    """
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    row_groups = [row_group for row_group in order.tensor_split(min(_NUM_FOLDS, len(values))) if len(row_group)]

    def validation_loss(penalty: float) -> float:
        total = 0.0
        for row_group in row_groups:
            is_training_row = torch.ones(len(values), dtype=torch.bool)
            is_training_row[row_group] = False
            head = _fit_with_penalty(features[is_training_row], values[is_training_row], kind, penalty)
            with torch.no_grad():
                total += float(loss_of(head(features[row_group]), values[row_group], kind)) * len(row_group)
        return total

    best_penalty = min(_PENALTIES, key=validation_loss)
    return _fit_with_penalty(features, values, kind, best_penalty)


def loss_of(predicted: Float[Tensor, " n"], values: Float[Tensor, " n"], kind: TaskKind) -> Float[Tensor, ""]:
    """Return the mean loss: half the squared error for regression, otherwise the cross entropy of the logits."""
    if kind == "regression":
        return 0.5 * (predicted - values).square().mean()
    return nn.functional.binary_cross_entropy_with_logits(predicted, values)


def _fit_with_penalty(
    features: Float[Tensor, "n f"], values: Float[Tensor, " n"], kind: TaskKind, penalty: float
) -> LinearHead:
    """Fit a head with this strength of the L2 penalty, in float64; features and values are standardised for it."""
    head = LinearHead(features.shape[1]).double()
    features, values = features.double(), values.double()
    scale = values.std(correction=0).clamp(min=1e-12) if kind == "regression" else values.new_ones(())
    centre = values.mean() if kind == "regression" else values.new_zeros(())
    head.mean.copy_(features.mean(0))
    head.deviation.copy_(features.std(0, correction=0).clamp(min=1e-6))
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=_MAX_FIT_ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(head(features), (values - centre) / scale, kind) + penalty * head.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        head.weight.mul_(scale)
        head.bias.mul_(scale).add_(centre)
    return head.float()


def stack_features(features: Sequence[Tensor]) -> Float[Tensor, "n f"]:
    """Stack the features of several targets as the rows of one float32 tensor on the CPU."""
    return torch.stack([each.detach().cpu().float() for each in features])


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task to learn: the rows of a table with their network inputs, the kind of head input, and the settings.

    `kind` is the kind of value, and `reads` the input of the head. `inputs` are the network's inputs for the rows, in
    the same order. `preset` is the model.
    """

    kind: TaskKind
    reads: HeadInput
    rows: Sequence[TaskRow]
    inputs: Sequence[ModelInput]
    preset: Preset
    config: FinetuneConfig

    def of(self, *splits: str) -> list[int]:
        """Return the indices of the rows that belong to these splits."""
        return [index for index, row in enumerate(self.rows) if row.split in splits]

    def digest(self) -> str:
        """Return the SHA-256 of the rows and their network inputs."""
        digest = hashlib.sha256()
        for row, inputs in zip(self.rows, self.inputs, strict=True):
            digest.update(f"{row.name}\t{row.sequence}\t{row.value}\t{row.split}\n".encode())
            for field in fields(inputs.features):
                if isinstance(array := getattr(inputs.features, field.name), np.ndarray):
                    digest.update(f"{field.name} {array.dtype} {array.shape}\n".encode())
                    digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def values(self, indices: Sequence[int]) -> Float[Tensor, " n"]:
        """Return the values of the rows at these indices; rows to predict have none and must not be among them."""
        return torch.tensor([self.rows[index].value for index in indices], dtype=torch.float32)


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """Scores of predictions for held-out rows, with 95 % intervals: AUC of classes, or Spearman correlation."""

    auc: Estimate | None
    spearman: Estimate | None

    @classmethod
    def of(cls, predicted: Sequence[float], true: Sequence[float], kind: TaskKind) -> "TaskScores":
        """Score predictions of held-out rows: values, or numbers that are higher for the class 1."""
        if kind == "regression":
            return cls(auc=None, spearman=with_interval(spearman, predicted, true))
        return cls(auc=with_interval(auc, predicted, [value > 0.5 for value in true]), spearman=None)

    @property
    def deciding(self) -> Estimate | None:
        """The score of this kind of task; None if it is not defined."""
        return self.auc or self.spearman


@dataclass(frozen=True, kw_only=True)
class LearntTask:
    """A trained head, its predictions for all rows, and its scores on held-out rows.

    `predicted` has values, or for classes the probabilities of class 1.
    """

    head: LinearHead
    predicted: Float[np.ndarray, " n"]
    scores: TaskScores


def all_features(task: Task, model: AlphaFold, device: torch.device, label: str) -> Float[Tensor, "n f"]:
    """Fold all rows with a network in evaluation mode and return their head features; `label` is for the bar."""
    model.eval()
    with torch.no_grad():
        bar = tqdm(range(len(task.rows)), desc=label, unit="target", disable=None)
        return stack_features([fold_features(task, index, model, Slabs(), device, position=0) for index in bar])


def with_frozen_network(task: Task, features: Float[Tensor, "n f"]) -> LearntTask:
    """Fit a head to the training rows and predict all rows.

    `features` are the head features of all rows, from the frozen network.
    """
    train = task.of("train")
    head = fit(features[train], task.values(train), task.kind, task.config.run.seed)
    return predict_and_score(task, head, features)


def with_adapted_network(
    task: Task, base: FrozenParameters, head: LinearHead, changes: Mapping[str, Tensor], device: torch.device
) -> LearntTask:
    """Predict all rows with a trained head on a network with low-rank `changes` of the frozen parameters.

    All rows are folded again. `changes` are the matrices A and B by name.
    """
    model = base.model(changed_parameters(base.state, changes, task.config.low_rank))
    return predict_and_score(task, head, all_features(task, model, device, "adapted network"))


def save_head(path: Path, head: LinearHead, task: Task, scores: TaskScores) -> None:
    """Write a head as safetensors, with the kind of its input and its scores as metadata."""
    about = {"kind": task.kind, "reads": task.reads, "model": task.preset.name, "scores": json.dumps(asdict(scores))}
    write_tensors(path, head.state_dict(), {"format": "helixfold task head", "version": "1", **about})


def predict_and_score(task: Task, head: LinearHead, features: Float[Tensor, "n f"]) -> LearntTask:
    """Predict all rows with a head from their features, and score the held-out rows.

    `features` has all rows of the table in order.
    """
    with torch.no_grad():
        outputs = head(features).numpy().astype(np.float64)
    test = task.of("test")
    scores = TaskScores.of(outputs[test].tolist(), task.values(test).tolist(), task.kind)
    predicted = 1 / (1 + np.exp(-outputs)) if task.kind != "regression" else outputs
    return LearntTask(head=head, predicted=predicted, scores=scores)


def fold_features(
    task: Task, index: int, model: AlphaFold, run: Executor, device: torch.device, *, position: int, part: int = 0
) -> Float[Tensor, " f"]:
    """Fold the row at an index and return its head features.

    `run` is the executor. The last recycling iteration has gradients where they are enabled. `position` and `part` seed
    the sampling of the input. `position` is one plus the training step, or 0 outside of training, and `part` is the
    index of the row in its batch.
    """
    inputs, dtype = task.inputs[index], dtype_on(task.config.run.dtype, properties_of(device))
    iterations = task.config.run.example.max_passes
    seed = task.config.run.seed
    samples = (draw(inputs, task.preset, [seed, position, part, iteration]) for iteration in range(iterations))
    ensembles = ([batch_of([sample], task.preset, device)] for sample in samples)
    previous = model.recycle(run, islice(ensembles, iterations - 1), dtype)
    folded = model.fold(run, next(ensembles), previous, dtype)
    return head_features(model, folded, torch.from_numpy(inputs.chain_index).to(device), task.reads)


_HEAD_NAME = "task_head"  # name of the head among the trained parameters


class TaskTraining:
    """Training of a head together with low-rank changes of the network whose output it reads.

    A new object for the same directory resumes from the newest intact checkpoint. A step depends only on the state
    before it, the settings and the table.
    """

    def __init__(self, task: Task, base: FrozenParameters, fitted: LinearHead, mesh: Mesh, checkpoints: Path) -> None:
        """Prepare the training, which starts from a head that was fitted to the frozen network."""
        self.task, self.mesh = task, mesh
        config = task.config.run
        self.trained = LowRankTrained(base, task.config.low_rank, seed=config.seed)
        self.head = LinearHead(len(fitted.weight)).to(mesh.device)
        self.head.load_state_dict(fitted.state_dict())
        self.trained.matrices.add_module(_HEAD_NAME, self.head)
        dtype = dtype_on(config.dtype, properties_of(mesh.device))
        self.optimizer = self.trained.optimizer(config.optimizer, dtype, averages=True)
        self.checkpoints = Checkpoints(checkpoints, keep=config.keep, mesh=mesh)
        self.step = self.skipped_in_a_row = 0
        restored = self.checkpoints.restore(self.optimizer.tensors())
        if restored is not None:
            self.optimizer.restored()
            self.step, self.skipped_in_a_row = restored.step, int(restored.record["skipped_in_a_row"])
            for text in restored.damaged:
                print_message(text)
            print_note(f"resuming after {counted(self.step, 'step')}")

    def run(self, stop: StopRequest) -> bool:
        """Run the remaining steps; return False if `stop` ended them early, after saving a checkpoint.

        Raise `InputError` if the loss or gradient of too many steps in a row is not finite.
        """
        config = self.task.config.run
        bar = tqdm(initial=self.step, total=config.steps, desc="training", unit="step", disable=None)
        with bar:
            while self.step < config.steps:
                self._make_step()
                bar.update()
                stopping = stop.is_requested()
                if self.step % config.save_every == 0 or self.step == config.steps or stopping:
                    record = {"config": config.to_dict(), "skipped_in_a_row": self.skipped_in_a_row}
                    self.checkpoints.save(self.step, self.optimizer.tensors(), record)
                for problem in self.checkpoints.problems():
                    print_message(problem)
                if stopping:
                    break
        self.trained.release()
        self.checkpoints.finish()
        return self.step >= config.steps

    def averages(self) -> tuple[LinearHead, dict[str, Tensor]]:
        """Return the head, and the low-rank changes (A and B) by name, as moving averages over the steps."""
        averages: Mapping[str, Tensor] = self.optimizer.averaged()
        of_head = {name: tensor for name, tensor in averages.items() if name.startswith(f"{_HEAD_NAME}.")}
        head = LinearHead(len(self.head.weight))
        head.load_state_dict(
            {
                **self.head.state_dict(),
                **{name.removeprefix(f"{_HEAD_NAME}."): tensor for name, tensor in of_head.items()},
            }
        )
        return head, {name: tensor for name, tensor in averages.items() if name not in of_head}

    def _make_step(self) -> None:
        """Train for one step on a batch of training rows, which the seed and the step determine."""
        task, config = self.task, self.task.config.run
        run = parallelize(self.trained.model.train(), self.mesh, config.recompute)
        rows = task.of("train")
        rng = random_stream(config.seed, StreamUse.DROPOUT, self.step, 0)
        batch = rng.choice(rows, min(config.batch_size, len(rows)), replace=False)
        for part, index in enumerate(batch):
            torch.manual_seed(int(rng.integers(2**62)))
            self.trained.apply()
            features = fold_features(
                task, int(index), self.trained.model, run, self.mesh.device, position=1 + self.step, part=part
            )
            value = task.values([int(index)]).to(self.mesh.device)
            self.optimizer.backward(loss_of(self.head(features[None]), value, task.kind))
            self.optimizer.collect(last=part == len(batch) - 1)
        report = self.optimizer.step(config.optimizer.rate(self.step), micro_batches=len(batch))
        self.step += 1
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if report.skipped else 0
        if self.skipped_in_a_row >= config.max_skipped:
            raise InputError(
                f"{counted(self.skipped_in_a_row, 'step')} in a row had a loss or gradient that is not finite; lower "
                "--learning-rate and pass another --output"
            )


_COLORS = ("#0072B2", "#D55E00", "#009E73")


def write_task_page(path: Path, title: str, task: Task, learnt: Mapping[str, LearntTask]) -> None:
    """Write the page of a task with scores, predictions and a picture.

    `learnt` has the results of each way of learning, by name.
    """
    score = "AUC" if task.kind != "regression" else "Spearman correlation"
    test = task.of("test")
    write_finetuning_page(
        path,
        kind=f"Task: {task.kind}",
        title=title,
        figures={
            **{f"{score}, {name}": _cells(each.scores.deciding)[0] for name, each in learnt.items()},
            "rows to learn from": f"{len(task.of('train')):,}",
            "held-out rows": f"{len(test):,}",
        },
        tables=[
            PageTable(
                title="Held-out rows",
                columns=["Way", score, "95 % interval"],
                rows=[[name, *_cells(each.scores.deciding)] for name, each in learnt.items()],
                note="Intervals are over resamples of the held-out rows.",
            ),
            PageTable(
                title="Predictions",
                columns=["Name", "Split", "Value", *learnt],
                rows=[
                    [row.name, row.split, "" if row.value is None else f"{row.value:g}"]
                    + [f"{each.predicted[index]:.3g}" for each in learnt.values()]
                    for index, row in enumerate(task.rows)
                ],
            ),
        ],
        facts={"Model": task.preset.name, "Head reads": task.reads, "Seed": str(task.config.run.seed)},
        picture=_picture(task, learnt, test),
    )


def _picture(task: Task, learnt: Mapping[str, LearntTask], test: list[int]) -> bytes:
    """Draw ROC curves for classes, or predicted against true values."""
    figure = new_figure(5.2, 4.6)
    axes, true = figure.subplots(), np.array([task.rows[index].value or 0.0 for index in test])
    for (name, each), color in zip(learnt.items(), _COLORS, strict=False):
        predicted = each.predicted[test]
        if task.kind == "regression":
            axes.plot(true, predicted, linestyle="none", marker="o", markersize=3, color=color, label=name)
        else:
            axes.plot(*roc(predicted, true > 0.5), color=color, label=name)
    if task.kind == "regression":
        axes.set(xlabel="Value", ylabel="Predicted")
    else:
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle="--")
        axes.set(xlabel="False positive rate", ylabel="True positive rate", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return to_png(figure)


def _cells(score: Estimate | None) -> list[str]:
    """Return a score and its interval as two cells of a table."""
    return ["not defined", ""] if score is None else [f"{score.value:.3f}", f"{score.low:.3f} to {score.high:.3f}"]


# Files in the output directory: the trained head, predictions for all rows, and the result.
HEAD_FILE, TABLE_FILE, RESULT_FILE = "task_head.safetensors", "predictions.tsv", "task.json"
# File of the features that the frozen network gives, next to the checkpoints, and its format and version.
_FROZEN_FILE, _FROZEN_FORMAT, _FROZEN_VERSION = "frozen_network.safetensors", "helixfold task numbers", "1"
# Default number of steps of training the head and the network together.
_DEFAULT_STEPS = 200


def finetune_task(table: Path, options: FinetuneOptions, output: Path) -> int:
    """Learn the values in a table with a head on the frozen network and, for lora, also with an adapted network.

    Files are written into `output`, and scores are printed. Repeating the command resumes a killed run; a finished one
    only prints its scores. Return 0 at the end, and the exit code of a signal that stopped the training. Raise
    `InputError` for wrong input, before anything is written.
    """
    limit_threads()
    rows = read_table(table, options.task)
    if options.adapter == "full":
        raise InputError("--table needs --adapter lora, or --adapter heads for a head on the frozen network only")
    preset, path = base_file(options.model, options.weights)
    mesh = Mesh.alone(pick_device(options.device))
    files = RunFiles(directory=output, name=preset.name)
    task = _task(table, rows, options, preset, _config(preset, options, mesh, files))
    base = load_base(preset, path, mesh.device)
    facts = {
        **adapter_facts(task.config, base),
        "base_file": base.name,
        "task": task.kind,
        "head": task.reads,
        "table": task.digest(),
    }
    files.check()
    require_same_finetuning(output, facts, task.config.run)
    if not _is_finished(output / RESULT_FILE, task):
        with os_errors_as_input_errors(output, "cannot be written"):
            files.checkpoints.mkdir(parents=True, exist_ok=True)
        with only_run(output), StopRequest().handling_signals() as stop, unmoved_directory(output):
            files.write_config(task.config.run, facts)
            if not _learn(task, base, mesh, files, stop):
                return stop.exit_code
    _print_scores(task, output)
    return 0


def _is_finished(path: Path, task: Task) -> bool:
    """Return whether an earlier run has finished, with at least the number of steps of this one."""
    try:
        return int(read_json(path, "")["steps"]) >= _steps(task.config)
    except (ValueError, KeyError, TypeError, OverflowError):  # OverflowError: the number is infinite.
        return False


def _steps(config: FinetuneConfig) -> int:
    """Return the number of training steps; 0 for a head on the frozen network only."""
    return config.run.steps if config.adapter == "lora" else 0


def _config(preset: Preset, options: FinetuneOptions, mesh: Mesh, files: RunFiles) -> FinetuneConfig:
    """Return the settings of a task, with dtype and checkpoint policies chosen for the device."""
    config = config_of(preset, {**vars(options), "steps": options.steps or _DEFAULT_STEPS})
    config = replace(config, run=with_settled_dtype(config.run, mesh, files.checkpoints, print_message))
    return with_settled_memory(config, properties_of(mesh.device), available_memory(mesh.device))


def _task(table: Path, rows: Sequence[TaskRow], options: TaskOptions, preset: Preset, config: FinetuneConfig) -> Task:
    """Return the task of a table and options; the head reads "pae" for binders and "single" otherwise, by default."""
    reads = options.head or ("pae" if options.task == "binder" else "single")
    inputs = _inputs(table, options, preset)
    return Task(kind=options.task, reads=reads, rows=rows, inputs=inputs, preset=preset, config=config)


def _learn(task: Task, base: FrozenParameters, mesh: Mesh, files: RunFiles, stop: StopRequest) -> bool:
    """Learn the task in each way and write the results; return False if `stop` ended the training early."""
    features = _frozen_features(task, base, mesh.device, files.checkpoints / _FROZEN_FILE)
    learnt = {"frozen network": with_frozen_network(task, features)}
    changes: dict[str, Tensor] = {}
    if task.config.adapter == "lora":
        training = TaskTraining(task, base, learnt["frozen network"].head, mesh, files.checkpoints)
        if not training.run(stop):
            return False
        head, changes = training.averages()
        learnt["adapted network"] = with_adapted_network(task, base, head, changes, mesh.device)
    if task.reads == "pae":
        learnt["published function of the error"] = predict_and_score(task, published_binder_head(), features)
    with os_errors_as_input_errors(files.directory, "cannot be written"):
        _write(files.directory, task, base, learnt, changes)
    return True


def _frozen_features(task: Task, base: FrozenParameters, device: torch.device, path: Path) -> Float[Tensor, "n f"]:
    """Return the head features of all rows from the frozen network, using a file so that a resumed run is faster."""
    if path.is_file():
        with open_tensors(path, _FROZEN_FORMAT, _FROZEN_VERSION, "was written by another program; delete it") as file:
            return read_tensors(path, file)["numbers"]
    features = all_features(task, base.model(), device, "frozen network")
    write_tensors(path, {"numbers": features}, {"format": _FROZEN_FORMAT, "version": _FROZEN_VERSION})
    return features


def _inputs(table: Path, options: TaskOptions, preset: Preset) -> list[ModelInput]:
    """Return the network's input for each row, with the alignments of `--msa`."""
    delimiter = "\t" if table.name.lower().removesuffix(".gz").endswith(".tsv") else ","
    targets = [target_of(read) for read in read_table_targets(table, delimiter, "name")]
    return [model_input(target_features(target), preset) for target in with_search_files(targets, options.msa, ())]


def _write(
    output: Path, task: Task, base: FrozenParameters, learnt: Mapping[str, LearntTask], changes: Mapping[str, Tensor]
) -> None:
    """Write the results: the adapter (with `changes`), the head, the table of predictions, the page and the result."""
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
    scores = {each: asdict(result.scores) for each, result in learnt.items()}
    content = {"task": task.kind, "reads": task.reads, "steps": _steps(task.config), "scores": scores}
    write_task_page(output / PAGE_FILE, output.resolve().name, task, learnt)
    # This file comes last, because it marks the run as finished.
    write_file(output / RESULT_FILE, to_json(content, indent=1))


def _table(task: Task, learnt: Mapping[str, LearntTask]) -> str:
    """Return the predictions for all rows as a table with one column for each way of learning."""
    header = ["name", "split", "value", *(name.replace(" ", "_") for name in learnt)]
    lines = ["\t".join(header)]
    for index, row in enumerate(task.rows):
        value = "" if row.value is None else f"{row.value:g}"
        predicted = (f"{float(np.round(each.predicted[index], 6)):g}" for each in learnt.values())
        lines.append("\t".join([row.name, row.split, value, *predicted]))
    return "".join(f"{line}\n" for line in lines)


def _print_scores(task: Task, output: Path) -> None:
    """Print the scores of a finished run."""
    measure = "Spearman correlation" if task.kind == "regression" else "AUC"
    name = "spearman" if task.kind == "regression" else "auc"
    for way, scores in read_json(output / RESULT_FILE, "delete it, and start the run again")["scores"].items():
        score = None if scores[name] is None else Estimate(**scores[name])
        text = "is not defined" if score is None else f"{score.value:.3f} ({score.low:.3f} to {score.high:.3f})"
        print_summary(f"{way}: {measure} of held-out rows {text}")
    print_summary(f"-> {output / PAGE_FILE}")
