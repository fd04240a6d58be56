"""Settings of a prediction run: its options, resolved to models, memory, searches and devices on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TextIO

import torch
from tqdm import tqdm

from data_pipeline.io.claims import Claims
from data_pipeline.io.errors import InputError
from data_pipeline.sampling.alignment_variants import WHOLE_ALIGNMENT, AlignmentVariant, VariantSettings
from data_pipeline.search.plan import SearchPlan
from helixfold.apps.options import PredictOptions, ToRelax
from helixfold.apps.presets import PREDICTION_PRESETS
from helixfold.apps.search_plan import search_identities
from helixfold.execution.device import DTYPES, cast_trunk
from helixfold.execution.iteration_runner import EAGER, IterationRunner
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import PredictionIdentity
from helixfold.parallel.worker_group import WorkerGroup
from helixfold.planning.estimate import Device, PredictionEstimate
from helixfold.planning.memory import FeatureRows, MemoryOptions
from helixfold.runtime.screen import hides_bars
from helixfold.runtime.standard_streams import print_summary
from helixfold.weights.find import ReadyModel


@dataclass(frozen=True, kw_only=True)
class PredictionRequest:
    """A prediction to be made: one model, one variant of the target's alignment, and one seed."""

    name: str  # of files: model, then variant and seed if there are several
    model: ReadyModel  # with the numbers of rows of the variant
    seed: int
    alignment: AlignmentVariant = WHOLE_ALIGNMENT

    @property
    def identity(self) -> PredictionIdentity:
        """Return the prediction's identity in records."""
        return PredictionIdentity(
            model=self.model.preset.name,
            seed=self.seed,
            weights=self.model.digest,
            weights_provenance=self.model.provenance,
            alignment=self.alignment.description,
        )


@dataclass(kw_only=True)
class Part:
    """The part of a larger batch that this run folds, whose targets are claimed already.

    `loaded` is a cache of models and CUDA graphs for the next part in this process.
    """

    claims: Claims
    loaded: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Resolved settings of a run, the same for all targets; seeds count up from `folding.seed`.

    `memory` are the limits of each process, and `iteration_runner` runs recycling iterations, eagerly or by CUDA
    graphs. `part` is set if this run folds a part of a larger batch.
    """

    options: PredictOptions
    folding: FoldingOptions
    searches: SearchPlan
    models: tuple[ReadyModel, ...]
    memory: MemoryOptions
    variants: VariantSettings  # of each target's alignment
    to_relax: ToRelax
    workers: WorkerGroup
    iteration_runner: IterationRunner = EAGER
    part: Part | None = None

    @cached_property
    def search_identities(self) -> tuple[str, ...]:
        """Return a line for each search with everything that determines its result."""
        return search_identities(self.searches)

    def predictions(self, variants: Sequence[AlignmentVariant] = (WHOLE_ALIGNMENT,)) -> list[PredictionRequest]:
        """Return the predictions of a target from variants of its alignment, in the order of folding.

        All variants and models with one seed come before the next seed.
        """
        has_seeds = self.options.num_seeds > 1
        return [
            PredictionRequest(
                name="_".join(filter(None, (model.preset.name, variant.name, f"seed_{seed}" if has_seeds else ""))),
                model=_limited_model(model, variant),
                seed=seed,
                alignment=variant,
            )
            for seed in range(self.folding.seed, self.folding.seed + self.options.num_seeds)
            for variant in variants
            for model in self.models
        ]

    @property
    def num_recycles(self) -> int:
        """Return the maximum number of recycles over all models."""
        return max(self.folding.recycles(model.preset) for model in self.models)

    @property
    def recycle_tolerance(self) -> float:
        """Return the maximum recycling tolerance (Å) over all models."""
        return max(self.folding.tolerance(model.preset) for model in self.models)

    @property
    def device(self) -> torch.device:
        """Return the device of this process."""
        return self.workers.mesh.device

    @property
    def no_bars(self) -> bool | None:
        """Return the `disable` argument of `tqdm`: True for JSON and for several processes, whose bars would mix."""
        # With None, tqdm shows a bar only on a terminal.
        return True if self.workers.mesh.size > 1 or self.options.progress == "json" else None

    @property
    def hides_iterations(self) -> bool | None:
        """Return the `disable` argument of `tqdm` for the bar of recycling iterations, as `no_bars` for other bars.

        In notebooks this is False, so that only this bar is shown, because they cannot show several.
        """
        return self.no_bars or hides_bars(None)

    def say(self, line: str, file: TextIO | None = None) -> None:
        """Print a line in the first rank of a group, and nothing in others; with several processes, name the rank.

        `file` of None is the screen's summary on stdout, which --quiet hides.
        """
        if self.workers.is_leader:
            text = line if self.workers.mesh.size == 1 else f"rank {self.workers.mesh.rank}: {line}"
            print_summary(text) if file is None else tqdm.write(text, file=file)

    def plan(self, model: ReadyModel, rows: FeatureRows, available: Device) -> PredictionEstimate:
        """Return the plan for a target with a model on each rank of a group, within the available memory.

        Its time is for the predictions of all seeds.
        """
        dtype, ensemble = DTYPES[self.folding.dtype], self.folding.num_ensemble
        size = rows.size(model.preset, dtype, ensemble, self.workers.group.size)
        iterations = self.options.num_seeds * (self.folding.recycles(model.preset) + 1)
        return self.memory.plan(model.preset, size, available, iterations)

    def computing_in(self, dtype: str) -> "RunSettings":
        """Cast the trunks of the models to this dtype, and return the settings with it."""
        for model in self.models:
            cast_trunk(model.network, DTYPES[dtype])
        return replace(self, folding=replace(self.folding, dtype=dtype))


def folding_of(options: PredictOptions) -> tuple[Sequence[str], FoldingOptions]:
    """Return the names of the models and the folding options, from the options, else the preset, else the defaults.

    Raise `InputError` if a preset of several models is combined with a single file of weights.
    """
    preset = None if options.preset is None else PREDICTION_PRESETS[options.preset]
    if preset is not None and not options.models and options.weights is not None and options.weights.is_file():
        raise InputError(
            f"{options.weights} has the parameters of one model, but --preset needs {', '.join(preset.models)}; "
            "pass --models, or a directory of weights"
        )
    # Fields with the same name are the same option. None takes the preset's value, or else the default.
    own_values = {field.name: getattr(options, field.name, None) for field in fields(FoldingOptions)}
    values = {name: getattr(preset, name, None) if value is None else value for name, value in own_values.items()}
    return options.models or (() if preset is None else preset.models), FoldingOptions(
        **{name: value for name, value in values.items() if value is not None},
        logits=options.save_logits,
        representations=options.save_representations,
        save_passes=options.save_recycles,
    )


def _limited_model(model: ReadyModel, variant: AlignmentVariant) -> ReadyModel:
    """Return the model with the limits of rows per iteration of a variant of the alignment."""
    limits = MemoryOptions(max_msa_rows=variant.max_msa_rows, max_extra_rows=variant.max_extra_rows)
    return model if variant.max_msa_rows is None else limits.limited(model)
