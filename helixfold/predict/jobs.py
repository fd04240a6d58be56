"""The targets of `helixfold predict`, how they are to be folded, and what each of them will take."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from tqdm import tqdm

from data_pipeline.features.schema import Features
from data_pipeline.pipeline import Target, prepare
from data_pipeline.search.plan import SearchPlan
from helixfold.inference import DTYPES, FoldingOptions
from helixfold.parallel.crew import Crew
from helixfold.planning.executors import Plan, Room
from helixfold.predict import search
from helixfold.predict.memory_plan import Forecast, MemoryOptions, Rows
from helixfold.predict.relaxation import ToRelax
from helixfold.predict.search import FEATURES_FILE, prepare_in
from helixfold.weights.find import ReadyModel


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One prediction that every target gets: a model, fed with the draws of one seed."""

    name: str  # of its files: the model's, with the seed where there are several
    model: ReadyModel
    seed: int


@dataclass(frozen=True, kw_only=True)
class Method:
    """How all targets of a run are folded; the seeds are `options.seed` and those after it."""

    searches: SearchPlan
    models: tuple[ReadyModel, ...]
    options: FoldingOptions
    memory: MemoryOptions
    crew: Crew
    num_seeds: int = 1
    to_relax: ToRelax = "none"
    search_identities: tuple[str, ...] = ()  # each search in one line that says what determines its result

    @property
    def wanted(self) -> list[Wanted]:
        """The predictions in the order in which they are made: all models with one seed, then with the next."""
        seeds = range(self.options.seed, self.options.seed + self.num_seeds)
        return [
            Wanted(
                name=f"{model.preset.name}_seed_{seed}" if self.num_seeds > 1 else model.preset.name,
                model=model,
                seed=seed,
            )
            for seed in seeds
            for model in self.models
        ]

    @property
    def num_recycles(self) -> int:
        """Passes after the first, of the model that makes most."""
        return max(self.options.recycles(model.preset) for model in self.models)

    @property
    def device(self) -> torch.device:
        return self.crew.mesh.device

    @property
    def no_bars(self) -> bool | None:
        """For `tqdm`: bars of several processes would mix. None is for it to decide."""
        return True if self.crew.mesh.size > 1 else None

    def say(self, line: str, file: TextIO | None = None) -> None:
        """One line for the screen, which says who speaks where there are several; one rank speaks for its group."""
        if self.crew.leads:
            tqdm.write(line if self.crew.mesh.size == 1 else f"rank {self.crew.mesh.rank}: {line}", file=file)

    def plan(self, model: ReadyModel, rows: Rows, room: Room) -> Plan:
        """How a model folds a target there, on each rank of a group."""
        options = self.options
        size = rows.size(model.preset, DTYPES[options.dtype], options.num_ensemble, self.crew.group.size)
        return self.memory.plan(model.preset, size, self.device, room)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One protein to fold: a target whose features are still to be made, or features that were made before."""

    target: Target | None = None
    features: Features | None = None

    @property
    def name(self) -> str:
        return self.target.name if self.target is not None else self._ready.domain_name

    @property
    def sequence(self) -> str:
        return self.target.sequence if self.target is not None else self._ready.sequence

    @property
    def features_digest(self) -> str:
        """Of features that were made before."""
        digest = hashlib.sha256()
        for field in fields(self._ready):
            digest.update(np.asarray(getattr(self._ready, field.name)).tobytes())
        return digest.hexdigest()

    def prepare(self, directory: Path, method: Method) -> Features:
        """The features, in the target's directory too."""
        if self.target is not None:
            prepared = prepare_in(directory, self.target, method.searches)
            method.say(f"{self.name}: {search.summary(prepared)}")
            return prepared.features
        directory.mkdir(parents=True, exist_ok=True)
        self._ready.save(directory / FEATURES_FILE)
        return self._ready

    def forecast(self, directory: Path, method: Method) -> Iterator[Forecast]:
        """What folding it with each model will take; nothing is written or searched."""
        rows, searches = None, method.searches
        if self.target is None:
            rows = Rows.of(self._ready)
        elif not searches.alignments and (searches.templates is None or self.target.templates):
            rows = Rows.of(prepare(self.target, SearchPlan(own_templates=searches.own_templates)).features)
        templates = searches.templates is not None or (self.target is not None and bool(self.target.templates))
        for model in method.models:
            read = rows or Rows.at_most(len(self.sequence), model.preset.sampling, templates=templates)
            found = method.plan(model, read, method.memory.room(method.device, directory))
            yield Forecast(target=self.name, model=model.preset.name, rows=read, plan=found)

    @property
    def _ready(self) -> Features:
        assert self.features is not None
        return self.features
