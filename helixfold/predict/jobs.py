"""The proteins that a run folds, the settings with which it folds all of them, and the memory forecast of each."""

import hashlib
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from jaxtyping import Float
from tqdm import tqdm

from data_pipeline.alignment_variants import WHOLE_ALIGNMENT, AlignmentVariant, VariantSettings
from data_pipeline.complexes.chain_ids import ONLY_CHAIN
from data_pipeline.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.complexes.feature_file import save_features
from data_pipeline.complexes.feature_set import ComplexFeatureSet, TargetFeatures
from data_pipeline.complexes.pipeline import target_features
from data_pipeline.parse.fasta import directory_name
from data_pipeline.search.plan import SearchPlan
from helixfold.execution.device import DTYPES
from helixfold.execution.recorded_passes import LAUNCHED, Passes
from helixfold.folding.initial_guess import guessed_positions
from helixfold.folding.model_input import input_notes, model_input
from helixfold.folding.options import FoldingOptions
from helixfold.folding.templates import templates_read as templates_read_by
from helixfold.options import RepresentationFormat
from helixfold.parallel.worker_group import WorkerGroup
from helixfold.planning.duration import prediction_seconds
from helixfold.planning.executors import AvailableMemory, Plan
from helixfold.planning.memory import FeatureRows, MemoryOptions
from helixfold.predict.memory_plan import TargetForecast
from helixfold.predict.options import OutputFormat, ToRelax
from helixfold.predict.search import FEATURES_FILE, prepare_in, write_templates
from helixfold.report.searches import summary
from helixfold.weights.find import ReadyModel


@dataclass(frozen=True, kw_only=True)
class RequestedPrediction:
    """A prediction that a run makes of a target: from a variant of its alignment, by one model, with one seed."""

    name: str  # of its files: the model's, then the variant's if there is one, then the seed if there are several
    model: ReadyModel  # whose preset reads as many rows as the variant has it
    seed: int
    alignment: AlignmentVariant = WHOLE_ALIGNMENT

    @property
    def key(self) -> tuple[str, int, str]:
        """Return what tells it from all other predictions of its target."""
        return self.model.preset.name, self.seed, self.alignment.description


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings with which a run folds all its targets; the seeds are `options.seed` and those after it."""

    searches: SearchPlan
    models: tuple[ReadyModel, ...]
    options: FoldingOptions
    memory: MemoryOptions
    workers: WorkerGroup
    num_seeds: int = 1
    variants: VariantSettings = field(default_factory=VariantSettings)  # of each target's alignment
    references: tuple[Path, ...] = ()  # structures to which samples are compared, such as two known conformations
    representations_format: RepresentationFormat = "npz"
    to_relax: ToRelax = "none"
    output_format: OutputFormat = "helixfold"
    search_identities: tuple[str, ...] = ()  # each search in one line that says what determines its result
    is_slim: bool = False  # finished targets have only the files that `postprocess.slim_down` leaves
    prints_json: bool = False  # progress, in place of bars
    command: tuple[str, ...] = ()  # its words, as results record them
    passes: Passes = LAUNCHED
    targets_at_once: int | None = None  # the most short targets that share passes; None: many on a GPU, else 1

    def predictions(self, variants: Iterable[AlignmentVariant] = (WHOLE_ALIGNMENT,)) -> list[RequestedPrediction]:
        """Return the predictions of a target from variants of its alignment, in the order in which they are made.

        All variants by all models with one seed come before the next seed.
        """
        variants = list(variants)
        return [
            RequestedPrediction(
                name="_".join(
                    filter(None, (model.preset.name, variant.name, f"seed_{seed}" if self.num_seeds > 1 else ""))
                ),
                model=_reading(model, variant),
                seed=seed,
                alignment=variant,
            )
            for seed in range(self.options.seed, self.options.seed + self.num_seeds)
            for variant in variants
            for model in self.models
        ]

    @property
    def num_recycles(self) -> int:
        """Return the largest number of recycles of any model."""
        return max(self.options.recycles(model.preset) for model in self.models)

    @property
    def recycle_tolerance(self) -> float:
        """Return the largest change of distances, in Angstrom, at which the recycling of any model ends."""
        return max(self.options.tolerance(model.preset) for model in self.models)

    @property
    def device(self) -> torch.device:
        """Return the device of this process."""
        return self.workers.mesh.device

    @property
    def no_bars(self) -> bool | None:
        """Return the `disable` argument of `tqdm`: True for several processes, whose bars would mix,
        and for JSON.
        """
        # None lets tqdm decide by whether it writes to a terminal.
        return True if self.workers.mesh.size > 1 or self.prints_json else None

    def say(self, line: str, file: TextIO | None = None) -> None:
        """Print a line from the first rank of a group, with its number if there are several processes."""
        if self.workers.is_leader:
            tqdm.write(line if self.workers.mesh.size == 1 else f"rank {self.workers.mesh.rank}: {line}", file=file)

    def plan(self, model: ReadyModel, rows: FeatureRows, available: AvailableMemory) -> Plan:
        """Return how each rank of a group folds a target with a model in the memory that it has."""
        options = self.options
        size = rows.size(model.preset, DTYPES[options.dtype], options.num_ensemble, self.workers.group.size)
        return self.memory.plan(model.preset, size, self.device, available)


def _reading(model: ReadyModel, variant: AlignmentVariant) -> ReadyModel:
    """Return the model with no more rows in each pass than a variant of the alignment has it read."""
    limits = MemoryOptions(max_msa_rows=variant.max_msa_rows, max_extra_rows=variant.max_extra_rows)
    return model if variant.max_msa_rows is None else limits.limited(model)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A protein or complex to fold: a target whose features are still to be made, or features that were made before."""

    target: AnyTarget | None = None
    features: TargetFeatures | None = None
    directory: str | None = None  # its name, where an earlier version made it; None: `directory_name` gives it
    initial_guess: Path | None = None  # a structure file, whose atoms the first pass recycles

    @property
    def name(self) -> str:
        """Return the name of the target's directory, by which the screen and lists call the target, too."""
        return self.directory or directory_name(self.title)

    @property
    def title(self) -> str:
        """Return the name of the target as its file has it."""
        return self.target.name if self.target is not None else self.given_features.domain_name

    @property
    def sequence(self) -> str:
        """Return the amino acids as one-letter codes, with colons between the chains of a complex."""
        return self.target.sequence if self.target is not None else self.given_features.sequence

    @property
    def residues(self) -> int:
        """Return the number of residues of all chains."""
        return len(self.sequence.replace(CHAIN_SEPARATOR, ""))

    @property
    def chains(self) -> int:
        """Return the number of chains."""
        return self.sequence.count(CHAIN_SEPARATOR) + 1

    @property
    def chain_ids(self) -> tuple[str, ...]:
        """Return the names of the chains in the order of the sequence."""
        if isinstance(self.target, ComplexInput):
            return tuple(name for entity in self.target.target.entities for name in entity.chain_ids)
        if isinstance(self.features, ComplexFeatureSet):
            return self.features.multimer.chain_names
        return (ONLY_CHAIN,)

    @property
    def is_complex(self) -> bool:
        """Return whether the target is a complex, be it of a single chain."""
        return isinstance(self.target, ComplexInput) or isinstance(self.features, ComplexFeatureSet)

    def notes(self, models: Sequence[ReadyModel]) -> tuple[str, ...]:
        """Return what every reader of its results by these models must know."""
        own = (note for model in models for note in (*model.notes, *input_notes(model.preset, self.chains)))
        return tuple(dict.fromkeys(own))

    def prepare(self, directory: Path, settings: RunSettings, templates_read: Collection[str] = ()) -> TargetFeatures:
        """Return the features, and write them into the target's directory.

        `templates_read` are the labels of the templates that earlier predictions in the directory used.
        """
        if self.target is not None:
            prepared = prepare_in(directory, self.target, settings.searches)
            of_run = (templates_read_by(prepared.features, model.preset) for model in settings.models)
            read = {*templates_read, *(template.label for templates in of_run for template in templates)}
            write_templates(directory, prepared, read)
            settings.say(f"{self.name}: {summary(prepared, read)}")
            return prepared.features
        save_features(directory / FEATURES_FILE, self.given_features)
        return self.given_features

    def guessed_positions(self, features: TargetFeatures) -> Float[np.ndarray, "r 37 3"] | None:
        """Return the atoms that the first pass recycles, in the order of the features; None for nothing."""
        return None if self.initial_guess is None else guessed_positions(self.initial_guess, features)

    def forecast(self, directory: Path, settings: RunSettings) -> Iterator[TargetForecast]:
        """Yield the memory and the time that folding it takes with each model; nothing is written or searched."""
        features, searches = self.features, settings.searches
        target = self.target
        if target is not None and not searches.alignments and (searches.templates is None or target.templates):
            with warnings.catch_warnings(action="ignore"):  # about unused templates, which the run itself reports
                features = target_features(target, SearchPlan(user_templates=searches.user_templates))
        templates = searches.templates is not None or (target is not None and bool(target.templates))
        for model in settings.models:
            rows = FeatureRows.at_most(self.residues, model.preset.sampling, templates=templates)
            if features is not None:
                rows = FeatureRows.of(model_input(features, model.preset).features)
            plan = settings.plan(model, rows, settings.memory.available(settings.device, directory))
            passes = settings.num_seeds * (settings.options.recycles(model.preset) + 1)
            seconds = prediction_seconds(model.preset.model, plan.size, settings.device, passes)
            yield TargetForecast(target=self.name, model=model.preset.name, rows=rows, plan=plan, seconds=seconds)

    @property
    def given_features(self) -> TargetFeatures:
        """Return the features that were made before, of a job that has them."""
        assert self.features is not None
        return self.features


def features_digest(features: TargetFeatures) -> str:
    """Return the SHA-256 digest of all arrays of features, as hexadecimal digits."""
    digest = hashlib.sha256()
    for part in (features.multimer, features.residue_gap) if isinstance(features, ComplexFeatureSet) else (features,):
        for each in fields(part):
            digest.update(np.asarray(getattr(part, each.name)).tobytes())
    return digest.hexdigest()
