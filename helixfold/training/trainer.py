"""The training loop: batches in, steps made, everything recorded, and nothing lost whatever ends it.

A step is a function of the state before it, the settings and the training set: of nothing that was drawn, measured or
restarted meanwhile. So a run that is killed and goes on, also on another number of ranks, is the run that was not.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from data_pipeline.config import ConfigError
from data_pipeline.datasets.examples import ChainStore, TrainingDataset
from data_pipeline.datasets.held_out import WithoutHeldOut
from data_pipeline.errors import InputError
from helixfold.execution.stages import peak_memory
from helixfold.model.alphafold import AlphaFold
from helixfold.ops.card import card_of
from helixfold.optim.flat import FlatOptimizer, StepReport
from helixfold.parallel.gradients import GradientRule
from helixfold.parallel.mesh import Mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.training.checkpoint import Checkpoints
from helixfold.training.config import FREE_SETTINGS, TrainingConfig
from helixfold.training.evaluate import ChainScores, evaluate, summary
from helixfold.training.loader import TrainingBatch, TrainingLoader
from helixfold.training.log import SilentLog, StepRecord, TrainingLog
from helixfold.training.meetings import MadeStep, Meetings, Share
from helixfold.training.memory import memory_of_each, remark, with_settled_recompute
from helixfold.training.results import RunFiles
from helixfold.training.step import forward_losses
from helixfold.training.stopping import StopRequest

_GIB = 2**30


class DivergedError(RuntimeError):
    """Too many steps in a row had a loss or a gradient that is not finite."""


@dataclass(kw_only=True)
class RunProgress:
    """The progress of a run: what its checkpoints record beside tensors."""

    step: int = 0  # the next one to be made
    skipped: int = 0  # in all
    skipped_in_a_row: int = 0
    best_score: float | None = None  # mean CA-lDDT of the held-out chains
    best_step: int | None = None


class Trainer:
    """One training run in its directory, on one rank of the mesh.

    Made anew for the same directory, it goes on where the newest whole checkpoint stands. What it recomputes is settled
    for the memory that there is now, unless `config` says it.
    """

    def __init__(
        self,
        config: TrainingConfig,
        store: ChainStore,
        files: RunFiles,
        mesh: Mesh,
        *,
        held_out: tuple[str, ...] = (),
        initial: dict[str, Tensor] | None = None,
        workers: int = 0,
        progress: bool = True,
    ) -> None:
        """`initial` are parameters to start from, all or some; `held_out` names the chains of evaluations."""
        mesh.layout.require_blocks(config.model)
        if config.parts < mesh.data.size:
            raise ConfigError(
                f"layout {mesh.layout} is for {mesh.data.size} parts of a batch or more, and batch_size "
                f"{config.batch_size} has {config.parts}; set batch_size to {mesh.data.size * config.micro_batch}, or "
                f"dp to {config.parts}"
            )
        self._notes: dict[str, list[str]] = {}
        if not config.recompute.is_settled:
            memory = memory_of_each(mesh)
            card = card_of(mesh.device)
            config = with_settled_recompute(config, memory, card, mesh.layout)
            self._notes["recompute"] = [remark(config, memory, card, mesh.layout)]
        self.config, self.files, self.mesh = config, files, mesh
        self.store, self.held_out, self.workers = store, held_out, workers
        self.dataset = TrainingDataset(
            store=WithoutHeldOut(store=store, names=held_out) if held_out else store,
            config=config.example,
            selection=config.selection,
            seed=config.seed,
            batch_size=config.micro_batch,
        )
        self.model = _new_model(config, initial, mesh.device)
        self._run_updates = parallelize(self.model, mesh, config.recompute).run
        self.optimizer = FlatOptimizer(
            self.model,
            config.optimizer,
            working_dtype=getattr(torch, config.dtype),
            averages=config.outer.islands == 1,
        )
        self.meetings = Meetings(config.outer, self.optimizer, mesh)
        self.gradients = GradientRule(
            self.optimizer, self.meetings.islands.within, dtype=getattr(torch, config.reduction)
        )
        self.checkpoints = Checkpoints(files.checkpoints, keep=config.keep, mesh=mesh)
        self.progress, self._notes["restore"] = self._restored()
        self._shows_progress = progress
        self.log: TrainingLog = SilentLog()

    def run(self, stop: StopRequest) -> bool:
        """Make the steps that are left; False if `stop` was asked for before (all is saved then)."""
        self._open_log()
        try:
            if self.progress.step < self.config.steps and not self._run_steps(stop):
                return False
            self.checkpoints.finish()
            if self.mesh.is_first:
                self.files.write_weights("last", self.optimizer.averaged(), self.config)
            return True
        finally:
            for text in self.meetings.told():
                self.log.event("islands", text)
            self._tell_problems()
            self.log.close()

    def _open_log(self) -> None:
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

    def _run_steps(self, stop: StopRequest) -> bool:
        self.model.train()
        loader = TrainingLoader(
            self.dataset,
            first_step=self.progress.step,
            last_step=self.config.steps,
            parts=self.mesh.micro_batches(self.config.parts),
            device=self.mesh.device,
            workers=self.workers,
        )
        batches = iter(loader)
        made: list[MadeStep] = []
        while self.progress.step < self.config.steps:
            made.append(self._make_step(batches, stop))
            if not self.meetings.is_due(self.progress.step):
                continue
            stopping = self._record(made)
            made = []
            self._tell_problems()
            done, total = self.progress.step, self.config.steps
            if self.held_out and (done % self.config.evaluation.every == 0 or done == total):
                self._evaluate()
            is_best = self.progress.best_step == done
            if done % self.config.save_every == 0 or done == total or stopping or is_best:
                self._save()
            if is_best:
                self.checkpoints.mark_best(done)
            if stopping and done < total:
                self.checkpoints.finish()
                self.log.event("stop", f"asked to end: saved after {done} steps; the same command goes on")
                return False
        return True

    def _make_step(self, batches: Iterator[TrainingBatch], stop: StopRequest) -> MadeStep:
        """Make one step, with the other ranks of this island."""
        start = time.perf_counter()
        step, config = self.progress.step, self.config
        waited = 0.0
        terms: dict[str, list[Tensor]] = {}
        names: list[str] = []
        refused: list[str] = []
        parts = self.mesh.micro_batches(config.parts)
        for part in parts:
            asked = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - asked
            names += batch.names
            refused += batch.refused
            losses = forward_losses(self.model, batch, config, self._run_updates)
            self.gradients.backward(losses.total.mean(), last=part == parts[-1])
            for name, values in losses.terms().items():
                terms.setdefault(name, []).append(values)

        # Read here and not before, so that a GPU is waited for once.
        sums = torch.stack([torch.cat(values) for values in terms.values()]).cpu().double().sum(1).tolist()
        own = Share(
            losses=dict(zip(terms, sums, strict=True)),
            names=names,
            refused=refused,
            data_seconds=waited,
            memory=peak_memory(self.mesh.device),
            stop=stop.is_asked(),
        )
        everyone = own.joined(self.meetings.islands.within)
        report = self._update(step, everyone)
        self.progress.step = step + 1
        return MadeStep(step=step, share=everyone, report=report, seconds=time.perf_counter() - start)

    def _record(self, made: list[MadeStep]) -> bool:
        """Have islands meet and record the steps since they last did; whether some rank was asked to stop."""
        config = self.config
        made, notes = self.meetings.meet(made)
        for each in made:
            share, report = each.share, each.report
            self.log.step(
                StepRecord(
                    step=each.step,
                    examples_seen=(each.step + 1) * config.batch_size,
                    losses={name: value / config.batch_size for name, value in share.losses.items()},
                    learning_rate=config.optimizer.rate(each.step),
                    gradient_norm=report.gradient_norm,
                    clipped=report.clipped,
                    skipped=report.skipped,
                    passes=self.dataset.num_passes(each.step),
                    seconds=each.seconds,
                    data_seconds=share.data_seconds,
                    examples_per_second=config.batch_size / each.seconds,
                    memory_gib=share.memory / _GIB,
                    names=tuple(share.names),
                )
            )
            for text in share.refused:
                self.log.event("refused", text, step=each.step)
            self._count_skipped(each.step, report, share)
        for text in notes:
            self.log.event("islands", text, step=made[-1].step)
        return any(each.share.stop for each in made)

    def _update(self, step: int, everyone: Share) -> StepReport:
        """Change the parameters, on all ranks of an island alike: they have the same gradients and the same losses."""
        if not all(math.isfinite(value) for value in everyone.losses.values()):
            self.optimizer.zero_gradients()
            return StepReport(gradient_norm=math.nan, clipped=0.0, skipped=True)
        parts = self.config.parts // self.config.outer.islands * self.gradients.replicas
        return self.optimizer.step(self.config.optimizer.rate(step), parts=parts)

    def _count_skipped(self, step: int, report: StepReport, everyone: Share) -> None:
        if not report.skipped:
            self.progress.skipped_in_a_row = 0
            return
        self.progress.skipped += 1
        self.progress.skipped_in_a_row += 1
        wrong = [name for name, value in everyone.losses.items() if not math.isfinite(value)] or ["the gradient"]
        batch = ", ".join(everyone.names)
        self.log.event(
            "skipped",
            f"{', '.join(wrong)} not finite; parameters stay as they were (seed {self.config.seed}, chains {batch})",
            step=step,
            chains=everyone.names,
        )
        if self.progress.skipped_in_a_row >= self.config.max_skipped:
            raise DivergedError(
                f"{self.progress.skipped_in_a_row} steps in a row, the last of them step {step} (seed "
                f"{self.config.seed}, chains {batch}), had a loss or a gradient that is not finite; lower "
                f"optimizer.learning_rate or look at these chains, and start again from an earlier checkpoint"
            )

    def _save(self) -> None:
        self.checkpoints.save(
            self.progress.step,
            self.meetings.gathered(),
            {
                "progress": asdict(self.progress),
                "config": self.config.to_dict(),
                "layout": [list(place) for place in self.optimizer.layout],
                "data": self._fingerprint(),
            },
        )

    def _restored(self) -> tuple[RunProgress, list[str]]:
        """Go on where the newest checkpoint stands; what a person should know of it."""
        state = self.meetings.blank()
        found = self.checkpoints.restore(state)
        if found is None:
            return RunProgress(), []
        record, notes = found.record, list(found.passed_over)
        _require_same(TrainingConfig.from_dict(record["config"]), self.config, self.files.directory)
        if json.loads(json.dumps([list(place) for place in self.optimizer.layout])) != record["layout"]:
            raise ConfigError(
                f"{self.files.directory}: the checkpoints were written with another layout of the parameters; go on "
                "with the version of helixfold that wrote them"
            )
        self.meetings.fill(state)
        notes.append(
            f"going on after {found.step} steps as {self.mesh.layout}"
            if found.step < self.config.steps
            else f"all {found.step} steps were made before; set more to go on"
        )
        if record["data"] != self._fingerprint():
            notes.append("the training set has changed since, so other examples are drawn than would have been")
        progress = RunProgress(**record["progress"])
        if progress.best_step is not None and self.checkpoints.best() != progress.best_step:
            self.checkpoints.mark_best(progress.best_step)  # the run was killed between the save and the mark
        return progress, notes

    def _evaluate(self) -> None:
        """Judge the averaged parameters by the held-out chains, shared among the ranks."""
        config, step = self.config, self.progress.step
        with torch.device("meta"):
            model = AlphaFold(config.model)
        model.load_state_dict(self.optimizer.averaged(), assign=True)
        mesh = self.mesh
        reports: list[str] = []
        scores = evaluate(
            model,
            self.store,
            self.held_out[mesh.rank :: mesh.size],
            example=config.example,
            loss=config.loss,
            # Of the structures that are written, this rank has those of the first chains that are its own.
            config=replace(
                config.evaluation, structures=len(range(mesh.rank, config.evaluation.structures, mesh.size))
            ),
            dtype=getattr(torch, config.dtype),
            device=mesh.device,
            structures=self.files.structures(step),
            report=reports.append,
        )
        parts = mesh.all_gather({"scores": [asdict(score) for score in scores], "reports": reports})
        for text in (text for part in parts for text in part["reports"]):
            self.log.event("evaluation", text, step=step - 1)
        everyone = sorted(
            (ChainScores(**values) for part in parts for values in part["scores"]),
            key=lambda score: self.held_out.index(score.name),
        )
        means = summary(everyone)
        score, best = means.get("lddt_ca"), self.progress.best_score
        is_best = score is not None and (best is None or score > best)
        if is_best:
            self.progress.best_score, self.progress.best_step = score, step
        if self.mesh.is_first:
            self.log.evaluation(step - 1, means, [asdict(each) for each in everyone])
            try:
                self.files.plot_curves()
                if is_best:
                    self.files.write_weights("best", self.optimizer.averaged(), self.config)
            except InputError as error:  # a full disk; the run has better things to do than to end
                self.log.event("save", str(error), step=step - 1)

    def _fingerprint(self) -> str:
        """What tells one training set from another."""
        entries = "\n".join(f"{entry.name}\t{entry.key}" for entry in self.dataset.store.entries)
        return hashlib.sha256(entries.encode()).hexdigest()

    def _tell_problems(self) -> None:
        for problem in self.checkpoints.problems():
            self.log.event("save", problem)


def _new_model(config: TrainingConfig, initial: dict[str, Tensor] | None, device: torch.device) -> AlphaFold:
    """The same on every rank: from the seed, or from given parameters."""
    torch.manual_seed(config.seed)
    model = AlphaFold(config.model)
    if initial is not None:
        model.load_state_dict(initial, strict=False)
    return model.to(device)


def _require_same(stored: TrainingConfig, given: TrainingConfig, directory: Path) -> None:
    """Settings that results depend on stay as they were when the run began."""
    before, now = (
        {name: value for name, value in config.flat().items() if name.split(".")[0] not in FREE_SETTINGS}
        for config in (stored, given)
    )
    changed = [
        f"{name} was {before.get(name)!r} and is now {now.get(name)!r}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise ConfigError(
            f"{directory}: this run began with other settings ({'; '.join(changed)}); repeat them, or name another "
            "directory"
        )
