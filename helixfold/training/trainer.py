"""Training loop with its log, checkpoints, evaluations and resumption.

A step depends only on the state before it, the settings and the training set. So a run that was killed and resumed,
even on another number of ranks, equals one that was never interrupted.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict

import torch
from torch import Tensor

from data_pipeline.io.config import ConfigError
from data_pipeline.io.errors import InputError
from data_pipeline.training_sets.examples import ComplexDataset, ComplexStore, TrainingDataset
from helixfold.execution.stages import peak_memory
from helixfold.model.alphafold import AlphaFold
from helixfold.ops.device_properties import properties_of
from helixfold.optim.flat import StepReport
from helixfold.optim.trained import AllParameters, Trained
from helixfold.parallel.gradients import GradientReducer
from helixfold.parallel.mesh import Mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.report.page import counted
from helixfold.results.training_log import StepRecord
from helixfold.runtime.options import CudaGraphs
from helixfold.training.checkpoint import Checkpoints
from helixfold.training.config import TrainingConfig, require_same_run
from helixfold.training.estimate import memory_per_rank, with_settled_recompute
from helixfold.training.evaluate import deciding_score, evaluate_on_ranks, mean_scores
from helixfold.training.loader import TrainingBatch, TrainingLoader
from helixfold.training.log import SilentLog, TrainingLog
from helixfold.training.outer_sync import CompletedStep, OuterSync, StepStats, summed
from helixfold.training.progress import RunProgress
from helixfold.training.run_dtype import with_settled_dtype
from helixfold.training.run_files import RunFiles
from helixfold.training.step import MicroBatchStep, step_graph_cache
from helixfold.training.stopping import StopRequest

_GIB = 2**30


class DivergedError(RuntimeError):
    """Error for too many steps in a row with a loss or a gradient that is not finite."""


class Trainer:
    """One training run in its directory, on one rank of the mesh.

    A new trainer for the same directory resumes from the newest intact checkpoint. A dtype "auto" is chosen for the
    device when the run begins and does not change when it resumes. Checkpoint policies that are "auto" in
    `config.recompute` are chosen at every start, to fit the available memory.
    """

    def __init__(
        self,
        config: TrainingConfig,
        store: ComplexStore,
        files: RunFiles,
        mesh: Mesh,
        *,
        held_out: tuple[str, ...] = (),
        initial: dict[str, Tensor] | None = None,
        trained: Trained | None = None,
        descends_from: str | None = None,
        began_with: str | None = None,
        workers: int = 0,
        progress: bool = True,
        cuda_graphs: CudaGraphs = "auto",
    ) -> None:
        """Prepare a run, or its resumption.

        `initial` has all or some of the initial parameters; others are random. `held_out` names the chains, or for
        complexes the assemblies, on which the run is evaluated. With `trained`, the run trains these values instead of
        all parameters of a new model. `descends_from` names the packaged model from which `initial` descends, and
        `began_with` describes the initial parameters in a sentence; both are written into the run's weights.
        Raise `ConfigError` if the settings do not fit the layout, the memory or the run's checkpoints.
        """
        mesh.layout.require_blocks(config.model)
        if config.micro_batches < mesh.data.size:
            raise ConfigError(
                f"layout {mesh.layout} needs {mesh.data.size} micro-batches or more, but batch_size "
                f"{config.batch_size} has {config.micro_batches}; set batch_size to "
                f"{mesh.data.size * config.micro_batch}, or dp to {config.micro_batches}"
            )
        self._notes: dict[str, list[str]] = {"dtype": []}
        if config.loss.aligned_error > 0 and not config.model.heads.aligned_error:
            # Not an error: the losses of AlphaFold's fine-tuning are the default for models without this head, too.
            self._notes["loss"] = [
                "loss.aligned_error has no effect, because the model does not predict aligned errors "
                "(model.heads.aligned_error=false)"
            ]
        config = with_settled_dtype(config, mesh, files.checkpoints, self._notes["dtype"].append)
        if not config.recompute.is_settled:
            memory, properties = memory_per_rank(mesh), properties_of(mesh.device)
            config, message = with_settled_recompute(config, memory, properties, mesh.layout)
            self._notes["recompute"] = [message]
        self.config, self.files, self.mesh = config, files, mesh
        self.store, self.held_out, self.workers = store, held_out, workers
        dataset_of = ComplexDataset if config.model.method == "multimer" else TrainingDataset
        self.dataset = dataset_of(
            store=store,
            config=config.example,
            selection=config.selection,
            seed=config.seed,
            batch_size=config.micro_batch,
            held_out=held_out,
        )
        # The seed gives every rank the same initial parameters.
        torch.manual_seed(config.seed)
        self.trained = trained or AllParameters(_model(config, initial).to(mesh.device))
        self.model = self.trained.model
        self._run_updates = parallelize(self.model, mesh, config.recompute)
        self.optimizer = self.trained.optimizer(
            config.optimizer, getattr(torch, config.dtype), averages=config.outer.islands == 1
        )
        self.outer_sync = OuterSync(config.outer, self.optimizer, mesh)
        self.gradients = GradientReducer(
            self.optimizer, self.outer_sync.islands.within, dtype=getattr(torch, config.reduction)
        )
        graphs, self._notes["graphs"] = step_graph_cache(
            config, mesh, cuda_graphs, lambda text: self.log.event("graphs", text)
        )
        self.micro_batch_step = MicroBatchStep(self.model, config, self._run_updates, self.gradients, graphs)
        self.checkpoints = Checkpoints(files.checkpoints, keep=config.keep, mesh=mesh)
        first = RunProgress(descends_from=descends_from, began_with=began_with)
        self.progress, self._notes["restore"] = self._restored(first)
        self._notes["weights"] = [began_with] if began_with is not None and self.progress.step == 0 else []
        self._shows_progress = progress
        self.log: TrainingLog = SilentLog()

    def run(self, stop: StopRequest) -> bool:
        """Train until the last step; return False if `stop` ended the run early, after saving a checkpoint.

        At the end, the averaged parameters are written to `weights/last.safetensors`. Raise `DivergedError` if the
        loss or gradient of too many steps in a row is not finite.
        """
        for _ in self.turns(stop):
            pass
        return self.is_finished

    def turns(self, stop: StopRequest) -> Iterator[int]:
        """Train like `run`, but yield after each step, so that runs can take turns.

        Values are the numbers of completed steps. With several islands, steps between synchronisations are not yielded.
        """
        self._open_log()
        try:
            if not self.is_finished:
                yield from self._run_steps(stop)
            if self.is_finished:
                self.checkpoints.finish()
                if self.mesh.is_first:
                    self._write_weights("last")
        finally:
            for text in self.outer_sync.communication_summary():
                self.log.event("islands", text)
            self._log_problems()
            self.log.close()

    def _open_log(self) -> None:
        """Open the log on the first rank, and record the notes about the start."""
        if self.mesh.is_first:
            self.log = TrainingLog(
                self.files.directory,
                first_step=self.progress.step,
                last_step=self.config.steps,
                progress=self._shows_progress,
            )
        for kind, notes in self._notes.items():
            for note in notes:
                self.log.event(kind, note)

    @property
    def is_finished(self) -> bool:
        """Whether all steps are completed, or evaluations have not improved for `evaluation.patience`."""
        return self.progress.step >= self.config.steps or self.progress.is_settled(self.config.evaluation)

    def _run_steps(self, stop: StopRequest) -> Iterator[int]:
        """Train until the end or a stop; yield the number of completed steps after each synchronisation."""
        self.model.train()
        loader = TrainingLoader(
            self.dataset,
            first_step=self.progress.step,
            last_step=self.config.steps,
            micro_batches=self.mesh.micro_batches(self.config.micro_batches),
            device=self.mesh.device,
            workers=self.workers,
        )
        batches = iter(loader)
        completed: list[CompletedStep] = []
        while not self.is_finished:
            completed.append(self._make_step(batches, stop))
            if not self.outer_sync.is_due(self.progress.step):
                continue
            stopping = self._synchronise(completed)
            completed = []
            self._log_problems()
            step, total = self.progress.step, self.config.steps
            if self.held_out and (step % self.config.evaluation.every == 0 or step == total):
                self._evaluate()
            is_best = self.progress.best_step == step
            if step % self.config.save_every == 0 or self.is_finished or stopping or is_best:
                record = {
                    "progress": asdict(self.progress),
                    "config": self.config.to_dict(),
                    "layout": [list(entry) for entry in self.optimizer.layout],
                    "data": self._fingerprint(),
                }
                self.checkpoints.save(step, self.outer_sync.gathered_state(), record)
            if is_best:
                self.checkpoints.mark_best(step)
            if stopping and not self.is_finished:
                self.checkpoints.finish()
                self.log.event(
                    "stop", f"stopped: saved after {counted(step, 'step')}; run the same command again to resume"
                )
                return
            yield step

    def _make_step(self, batches: Iterator[TrainingBatch], stop: StopRequest) -> CompletedStep:
        """Carry out one step together with the other ranks of this island."""
        start = time.perf_counter()
        step, config = self.progress.step, self.config
        data_seconds = 0.0
        terms: dict[str, list[Tensor]] = {}
        names: list[str] = []
        refused: list[str] = []
        micro_batches = self.mesh.micro_batches(config.micro_batches)
        for index in micro_batches:
            waiting_since = time.perf_counter()
            batch = next(batches)
            data_seconds += time.perf_counter() - waiting_since
            names += batch.names
            refused += batch.refused
            self.trained.apply()
            for name, values in self.micro_batch_step(batch, last=index == micro_batches[-1]).items():
                terms.setdefault(name, []).append(values)

        # Losses are read after all micro-batches, so that the CPU waits for the GPU once.
        losses, metrics = summed(terms)
        stats = StepStats(
            losses=losses,
            metrics=metrics,
            names=names,
            refused=refused,
            data_seconds=data_seconds,
            memory=peak_memory(self.mesh.device),
            stop=stop.is_requested(),
        )
        stats = stats.gathered(self.outer_sync.islands.within)
        report = self._update(step, stats)
        self.progress.step = step + 1
        return CompletedStep(step=step, stats=stats, report=report, seconds=time.perf_counter() - start)

    def _synchronise(self, completed: list[CompletedStep]) -> bool:
        """Synchronise islands and log the steps since the last time; return whether any rank must stop."""
        config = self.config
        completed, messages = self.outer_sync.synchronise(completed)
        for step in completed:
            stats, report = step.stats, step.report
            self.log.step(
                StepRecord(
                    step=step.step,
                    examples_seen=(step.step + 1) * config.batch_size,
                    losses={name: value / config.batch_size for name, value in stats.losses.items()},
                    metrics=stats.mean_metrics(),
                    learning_rate=config.optimizer.rate(step.step),
                    gradient_norm=report.gradient_norm,
                    clipped=report.clipped,
                    skipped=report.skipped,
                    passes=self.dataset.num_passes(step.step),
                    seconds=step.seconds,
                    data_seconds=stats.data_seconds,
                    examples_per_second=config.batch_size / step.seconds,
                    memory_gib=stats.memory / _GIB,
                    names=tuple(stats.names),
                )
            )
            for text in stats.refused:
                self.log.event("refused", text, step=step.step)
            self._count_skipped(step.step, report, stats)
        for text in messages:
            self.log.event("islands", text, step=completed[-1].step)
        return any(step.stats.stop for step in completed)

    def _update(self, step: int, stats: StepStats) -> StepReport:
        """Update the parameters. All ranks of an island have the same gradients and losses, so their updates agree."""
        if not all(math.isfinite(value) for value in stats.losses.values()):
            self.optimizer.zero_gradients()
            return StepReport(gradient_norm=math.nan, clipped=0.0, skipped=True)
        micro_batches = self.config.micro_batches // self.config.outer.islands * self.gradients.replicas
        return self.optimizer.step(self.config.optimizer.rate(step), micro_batches=micro_batches)

    def _count_skipped(self, step: int, report: StepReport, stats: StepStats) -> None:
        """Count a skipped step and record it; raise `DivergedError` after too many in a row."""
        if not report.skipped:
            self.progress.skipped_in_a_row = 0
            return
        self.progress.skipped += 1
        self.progress.skipped_in_a_row += 1
        not_finite = [name for name, value in stats.losses.items() if not math.isfinite(value)] or ["the gradient"]
        batch = ", ".join(stats.names)
        self.log.event(
            "skipped",
            f"{', '.join(not_finite)} not finite; parameters are not updated (seed {self.config.seed}, chains {batch})",
            step=step,
            chains=stats.names,
        )
        if self.progress.skipped_in_a_row >= self.config.max_skipped:
            raise DivergedError(
                f"{counted(self.progress.skipped_in_a_row, 'step')} in a row, up to step {step} (seed "
                f"{self.config.seed}, chains {batch}), had a loss or a gradient that is not finite; lower "
                f"optimizer.learning_rate or check these chains, and start again from an earlier checkpoint"
            )

    def _write_weights(self, name: str) -> None:
        """Write the averaged parameters to `weights/NAME.safetensors`, where NAME is `name`."""
        self.files.write_weights(
            name,
            self.optimizer.averaged(),
            self.config,
            descends_from=self.progress.descends_from,
            began_with=self.progress.began_with,
        )

    def _restored(self, first: RunProgress) -> tuple[RunProgress, list[str]]:
        """Restore the newest intact checkpoint; return its progress, or `first` if none, and messages for the log."""
        state = self.outer_sync.empty_state()
        restored = self.checkpoints.restore(state)
        if restored is None:
            return first, []
        record, notes = restored.record, list(restored.damaged)
        require_same_run(self.files.directory, TrainingConfig.from_dict(record["config"]).record, self.config.record)
        if json.loads(json.dumps([list(entry) for entry in self.optimizer.layout])) != record["layout"]:
            raise ConfigError(
                f"{self.files.directory}: the checkpoints were written with another layout of the parameters; resume "
                "with the version of helixfold that wrote them"
            )
        self.outer_sync.restore(state)
        notes.append(
            f"resuming after {counted(restored.step, 'step')} as {self.mesh.layout}"
            if restored.step < self.config.steps
            else f"completed after {counted(restored.step, 'step')}; set more steps to continue"
        )
        if record["data"] != self._fingerprint():
            notes.append("the training set has changed since the last run, so other examples are drawn")
        progress = RunProgress(**record["progress"])
        if progress.best_step is not None and self.checkpoints.best() != progress.best_step:
            self.checkpoints.mark_best(progress.best_step)  # The run was killed between the save and the mark.
        return progress, notes

    def _evaluate(self) -> None:
        """Evaluate the averaged parameters on the held-out chains or complexes, which are divided among the ranks."""
        config, step = self.config, self.progress.step
        # Memory is freed first, because held-out chains may need all of it.
        self.micro_batch_step.clear()
        self.trained.release()
        with torch.device("meta"):
            model = AlphaFold(config.model)
        model.load_state_dict(self.trained.state(self.optimizer.averaged()), assign=True)
        chains, reports = evaluate_on_ranks(
            model,
            self.store,
            self.held_out,
            self.mesh,
            config,
            structures=self.files.directory / "structures" / f"step_{step:08d}",
        )
        for text in reports:
            self.log.event("evaluation", text, step=step - 1)
        means = mean_scores(chains)
        score, best = deciding_score(means), self.progress.best_score
        is_best = score is not None and (best is None or score > best)
        if is_best:
            self.progress.best_score, self.progress.best_step = score, step
        if self.mesh.is_first:
            self.log.evaluation(step - 1, means, [asdict(chain) for chain in chains])
            try:
                self.files.plot_curves()
                if is_best:
                    self._write_weights("best")
            except InputError as error:  # A full disk must not end the run.
                self.log.event("save", str(error), step=step - 1)

    def _fingerprint(self) -> str:
        """Return a digest of the training set's chains."""
        entries = "\n".join(f"{entry.name}\t{entry.key}" for entry in self.dataset.entries)
        return hashlib.sha256(entries.encode()).hexdigest()

    def _log_problems(self) -> None:
        """Record the problems of checkpoints in the log."""
        for problem in self.checkpoints.problems():
            self.log.event("save", problem)


def _model(config: TrainingConfig, initial: Mapping[str, Tensor] | None) -> AlphaFold:
    """Return a model with random parameters, all or some of which are replaced with `initial`."""
    model = AlphaFold(config.model)
    if initial is not None:
        model.load_state_dict(initial, strict=False)
    return model
