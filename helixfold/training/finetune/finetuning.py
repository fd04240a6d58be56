"""One fine-tuning in its directory: held-out scores before, the training, and the adapter with its page at the end."""

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

ADAPTER_FILE = "adapter.safetensors"
# Facts on a run that are digests or lists of names; all others are options.
_DIGESTS = frozenset({"base", "table", "held_out"})
_KEPT = ("name", "residues", *TargetScores.SCORES)


@dataclass(frozen=True, kw_only=True)
class Task:
    """Plan of a fine-tuning: its data, its settings and the directory of its run.

    `deadline` is in seconds from the beginning of several fine-tunings, and None for one that has time.
    """

    name: str
    training_set: Path
    held_out: Path | None
    config: FinetuneConfig
    output: Path
    deadline: float | None = None


class Finetuning:
    """One fine-tuning on one rank of a mesh; another one of the same directory resumes it."""

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

        `descends_from` names the packaged model that the base is or descends from.
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
            facts = {**trained_numbers(task.config, base), "held_out": list(self.held_out)}
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
        """Train until the end or a request to stop, and yield the number of steps made after each.

        At the end, write the result.
        """
        if self.mesh.is_first:
            self.files.write_config(self.trainer.config, self._facts)
        self._score_before()
        yield from self.trainer.turns(self.stop)
        if self.is_finished and self.mesh.is_first:
            self._finish()

    @property
    def is_finished(self) -> bool:
        """Return whether the training has come to its end."""
        return self.trainer.is_finished

    def release(self) -> None:
        """Free what only a running step needs, so that another fine-tuning may have the memory."""
        self.trainer.trained.release()

    def _trained(self) -> Trained | None:
        config = self.task.config
        if config.adapter == "lora":
            return LowRankTrained(self.base, config.low_rank, seed=config.run.seed)
        return HeadsTrained(self.base) if config.adapter == "heads" else None

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """The facts on the run that its `config.json` has beside the settings of the training."""
        entries = sorted((entry.name, entry.key) for entry in self.store.entries)
        chains = "\n".join(f"{name}\t{key}" for name, key in entries)
        return {
            **trained_numbers(self.task.config, self.base),
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
        config = self.task.config
        free = {name.split(".")[0] for name in FREE_SETTINGS}
        settings = {
            name: value for name, value in config.run.flat().items() if name.split(".")[0] not in {*free, "model"}
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
        names = adapter_names(self.task.config.adapter, list(averages))
        save_adapter(path, {name: averages[name] for name in names}, self._card({}))

    def _score_before(self) -> None:
        """Score the held-out targets with the base's parameters, unless the run did so before."""
        path = self.files.directory / BEFORE_FILE
        if not self.held_out or self.mesh.broadcast(path.is_file()):
            return
        chains, reports = evaluate_on_ranks(
            self.base.model(), self.store, self.held_out, self.mesh, self.trainer.config, structures=None
        )
        if self.mesh.is_first:
            for text in reports:
                print_message(text)
            write_file(path, to_json({"chains": [{name: getattr(chain, name) for name in _KEPT} for chain in chains]}))

    def _finish(self) -> None:
        history, progress = read_log(self.files.directory / LOG_FILE), self.trainer.progress
        # Heads change no structure, so that lDDT does not tell which of their values are better.
        best_step = None if self.task.config.adapter == "heads" else progress.best_step
        judged = [record for record in history.evaluations if best_step in (None, record.step + 1)]
        result = FinetuningResult(
            name=self.task.name,
            adapter=self.task.config.adapter,
            base=self.base.name,
            base_sha256=self.base.sha256,
            steps=progress.step,
            best_step=best_step,
            skipped=progress.skipped,
            targets=self._targets(judged[-1]) if judged else (),
        )
        chosen = self.files.directory / "weights" / ("last.safetensors" if best_step is None else "best.safetensors")
        output = chosen
        if self.task.config.adapter != "full":
            output = self.files.directory / ADAPTER_FILE
            save_adapter(output, read_adapter(chosen).tensors, self._card(result.means()))
        write_result(self.files.directory, result, output, self._facts)

    def _targets(self, after: EvaluationRecord) -> tuple[TargetScores, ...]:
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


def require_same_finetuning(directory: Path, facts: Mapping[str, Any], given: TrainingConfig) -> None:
    """Raise `ConfigError` if the run in the directory has other data, goals or settings.

    `facts` that `config.json` records must equal it; `given` are the settings of the training.
    """
    try:
        stored = JsonObject.read(directory / CONFIG_FILE).content
    except ValueError:
        return  # it has not begun yet
    before = TrainingConfig.from_dict(stored.get("config", {}))
    # What is chosen for the device stays as it was.
    now = replace(given, dtype=before.dtype) if given.dtype == AUTO else given
    known = facts.keys() & stored  # earlier versions wrote less
    require_same_run(
        directory,
        *(
            RunRecord(
                inputs={name: values[name] for name in known & _DIGESTS},
                options={**config.record.options, **{name: values[name] for name in known - _DIGESTS}},
            )
            for config, values in ((before, stored), (now, facts))
        ),
    )


def trained_numbers(config: FinetuneConfig, base: FrozenParameters) -> dict[str, Any]:
    """Return what of which parameters a fine-tuning changes, as `config.json` has it."""
    low_rank = config.low_rank.to_dict() if config.adapter == "lora" else None
    return {"adapter": config.adapter, "low_rank": low_rank, "base": base.sha256}
