"""Run one fine-tuning in its directory: score held-out targets, train, and write the adapter and its page."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

import helixfold
from data_pipeline.io.json_files import read_json
from data_pipeline.training_sets.store import FeatureStore
from helixfold.execution.device import AUTO
from helixfold.optim.trained import Trained
from helixfold.parallel.mesh import Mesh
from helixfold.report.training_curves import plot_curves
from helixfold.results.json_object import JsonObject
from helixfold.results.record import RunRecord
from helixfold.results.training_log import LOG_FILE, EvaluationRecord, read_log
from helixfold.results.writing import to_json, write_file
from helixfold.training.config import FREE_SETTINGS, TrainingConfig, require_same_run
from helixfold.training.evaluate import evaluate_on_ranks
from helixfold.training.finetune.adapted import FrozenParameters, HeadsTrained, LowRankTrained, adapter_names
from helixfold.training.finetune.result import BEFORE_FILE, FinetuningResult, TargetScores, write_result
from helixfold.training.finetune.settings import FinetuneConfig
from helixfold.training.progress import print_message
from helixfold.training.run import held_out_names
from helixfold.training.run_files import CONFIG_FILE, RunFiles
from helixfold.training.stopping import StopRequest
from helixfold.training.trainer import Trainer
from helixfold.weights.adapters import AdapterCard, read_adapter, save_adapter

ADAPTER_FILE = "adapter.safetensors"  # name of a file in the output directory
# These facts about a run are digests or lists of names; all others are options.
_INPUT_FACTS = frozenset({"base", "table", "held_out"})
# Fields of `HeldOutScores` that are recorded before training.
_BEFORE_FIELDS = ("name", "residues", *TargetScores.SCORES)


@dataclass(frozen=True, kw_only=True)
class Task:
    """Definition of a fine-tuning: its data, settings and output directory.

    `training_set` is a feature store, and `held_out` a file of names that are evaluated, not trained on. `deadline` is
    in seconds from the start of a set of fine-tunings; None means no deadline.
    """

    name: str
    training_set: Path
    held_out: Path | None
    config: FinetuneConfig
    output: Path
    deadline: float | None = None


class Finetuning:
    """One fine-tuning on one rank of a mesh; a new object for the same directory resumes it.

    `stop` is the request that ends the training early, `workers` the number of processes that load examples, and
    `progress` whether progress is shown.
    """

    def __init__(
        self,
        task: Task,
        base: FrozenParameters,
        mesh: Mesh,
        stop: StopRequest,
        *,
        descends_from: str | None = None,
        workers: int = 0,
        progress: bool = True,
    ) -> None:
        """Prepare the run. Raise `InputError` for wrong input, or if the run began with other settings.

        `descends_from` names the packaged model from which the base model descends, which may be itself.
        """
        self.task, self.base, self.mesh, self.stop = task, base, mesh, stop
        self.store = FeatureStore.open(task.training_set)
        self.held_out = () if task.held_out is None else held_out_names(task.held_out, self.store, task.config.run)
        is_full = task.config.adapter == "full"
        self.files = RunFiles(
            directory=task.output, name=task.name, draw=plot_curves, save=None if is_full else self._save_adapter
        )
        if mesh.is_first:
            self.files.check()
            facts = {**adapter_facts(task.config, base), "held_out": list(self.held_out)}
            require_same_finetuning(task.output, facts, task.config.run)
        self.trainer = Trainer(
            task.config.run,
            self.store,
            self.files,
            mesh,
            held_out=self.held_out,
            initial=dict(base.state) if is_full else None,
            trained=self._trained(),
            descends_from=descends_from,
            began_with=(base.began_with or f"began with all parameters of {base.name}") if is_full else None,
            workers=workers,
            progress=progress,
            cuda_graphs="off",
        )

    def turns(self) -> Iterator[int]:
        """Train until the end or a request to stop, and yield the number of completed steps after each step.

        First score the held-out targets with the base model. At the end, write the result; after a stop, nothing more.
        """
        if self.mesh.is_first:
            self.files.write_config(self.trainer.config, self._facts)
        self._score_before()
        yield from self.trainer.turns(self.stop)
        if self.is_finished and self.mesh.is_first:
            self._finish()

    @property
    def is_finished(self) -> bool:
        """Whether the training has ended."""
        return self.trainer.is_finished

    def release(self) -> None:
        """Free memory that is needed only during a step, so that another fine-tuning can use it."""
        self.trainer.trained.release()

    def _trained(self) -> Trained | None:
        """Return what is trained; None for all parameters."""
        config = self.task.config
        if config.adapter == "lora":
            return LowRankTrained(self.base, config.low_rank, seed=config.run.seed)
        return HeadsTrained(self.base) if config.adapter == "heads" else None

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """The facts about the run that `config.json` records in addition to the training settings."""
        entries = sorted((entry.name, entry.key) for entry in self.store.entries)
        chains = "\n".join(f"{name}\t{key}" for name, key in entries)
        return {
            **adapter_facts(self.task.config, self.base),
            "base_file": self.base.name,
            **({} if self.base.listing is None else {"began_with": self.base.listing}),
            "training_set": {
                "name": self.task.training_set.name,
                "chains": len(entries),
                "sha256": hashlib.sha256(chains.encode()).hexdigest(),
            },
            "held_out": list(self.held_out),
            "ranks": self.mesh.size,
            "versions": {"helixfold": helixfold.__version__},
        }

    def _card(self, scores: Mapping[str, Any]) -> AdapterCard:
        """Return the card of the adapter file, which describes its base model, training and scores."""
        config = self.task.config
        free_settings = {name.split(".")[0] for name in FREE_SETTINGS}
        settings = {
            name: value
            for name, value in config.run.flat().items()
            if name.split(".")[0] not in {*free_settings, "model"}
        }
        return AdapterCard(
            kind="heads" if config.adapter == "heads" else "lora",
            base=self.base.sha256,
            base_name=self.base.name,
            low_rank=config.low_rank if config.adapter == "lora" else None,
            training={
                **{name: self._facts[name] for name in ("training_set", "held_out")},
                "steps": self.trainer.progress.step,
                "seed": config.run.seed,
                "settings": settings,
            },
            scores=scores,
        )

    def _save_adapter(self, path: Path, averages: Mapping[str, Tensor]) -> None:
        """Write the averages of the trained parameters as an adapter file, without scores."""
        names = adapter_names(self.task.config.adapter, list(averages))
        save_adapter(path, {name: averages[name] for name in names}, self._card({}))

    def _score_before(self) -> None:
        """Score the held-out targets with the base model, unless the run has done so before."""
        path = self.files.directory / BEFORE_FILE
        if not self.held_out or self.mesh.broadcast(path.is_file()):
            return
        chains, reports = evaluate_on_ranks(
            self.base.model(), self.store, self.held_out, self.mesh, self.trainer.config, structures=None
        )
        if self.mesh.is_first:
            for text in reports:
                print_message(text)
            scores = [{name: getattr(chain, name) for name in _BEFORE_FIELDS} for chain in chains]
            write_file(path, to_json({"chains": scores}))

    def _finish(self) -> None:
        """Write the adapter with its scores, the page and the result."""
        history, progress = read_log(self.files.directory / LOG_FILE), self.trainer.progress
        # Heads do not change the structure, so lDDT cannot show which step is best.
        best_step = None if self.task.config.adapter == "heads" else progress.best_step
        evaluations = [record for record in history.evaluations if best_step in (None, record.step + 1)]
        result = FinetuningResult(
            name=self.task.name,
            adapter=self.task.config.adapter,
            base=self.base.name,
            base_sha256=self.base.sha256,
            steps=progress.step,
            best_step=best_step,
            skipped=progress.skipped,
            targets=self._targets(evaluations[-1]) if evaluations else (),
        )
        weights = self.files.weights("last" if best_step is None else "best")
        output = weights
        if self.task.config.adapter != "full":
            output = self.files.directory / ADAPTER_FILE
            save_adapter(output, read_adapter(weights).tensors, self._card(result.means()))
        write_result(self.files.directory, result, output, self._facts)

    def _targets(self, after: EvaluationRecord) -> tuple[TargetScores, ...]:
        """Return the scores of held-out targets before the training and in the evaluation `after`."""
        before = read_json(self.files.directory / BEFORE_FILE, "delete it, and start the run again")["chains"]
        by_name = {chain["name"]: chain for chain in before}
        return tuple(
            TargetScores(
                name=chain["name"],
                residues=chain["residues"],
                before={name: by_name[chain["name"]][name] for name in TargetScores.SCORES},
                after={name: chain[name] for name in TargetScores.SCORES},
            )
            for chain in after.chains
            if chain["name"] in by_name
        )


def require_same_finetuning(directory: Path, facts: Mapping[str, Any], config: TrainingConfig) -> None:
    """Raise `ConfigError` if the run in the directory has other data, another adapter or other settings.

    `facts` are compared with the entries of `config.json` by the same names, and `config` with its training settings.
    """
    try:
        stored = JsonObject.read(directory / CONFIG_FILE).content
    except ValueError:
        return  # The run has not begun yet.
    before = TrainingConfig.from_dict(stored.get("config", {}))
    # A dtype that was chosen for the device stays the same.
    now = replace(config, dtype=before.dtype) if config.dtype == AUTO else config
    recorded = facts.keys() & stored  # Earlier versions recorded fewer facts.
    require_same_run(
        directory,
        *(
            RunRecord(
                inputs={name: values[name] for name in recorded & _INPUT_FACTS},
                options={**settings.record.options, **{name: values[name] for name in recorded - _INPUT_FACTS}},
            )
            for settings, values in ((before, stored), (now, facts))
        ),
    )


def adapter_facts(config: FinetuneConfig, base: FrozenParameters) -> dict[str, Any]:
    """Return the kind of adapter, its low-rank settings and the base model's digest, as `config.json` records them."""
    low_rank = config.low_rank.to_dict() if config.adapter == "lora" else None
    return {"adapter": config.adapter, "low_rank": low_rank, "base": base.sha256}
