"""The options with which a worker predicts: those of its own, and those of a job."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Self

from data_pipeline.complexes.chain_sequences import CHAIN_SEPARATOR
from helixfold.predict.options import (
    ComplexOptions,
    ComputeOptions,
    DeviceOptions,
    ModelOptions,
    PredictOptions,
    ScreenOptions,
    SearchOptions,
    TargetOptions,
)
from helixfold.serve.forecast_curve import usual_model


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options of a worker: weights, models by name (none: those there are), databases and a device."""

    device: str = "auto"
    models: tuple[str, ...] = ()
    weights: Path | None = None
    databases: Path | None = None
    threads: int | None = None
    memory: int | None = None

    def with_absolute_paths(self) -> Self:
        """Return options that mean the same in another directory."""
        weights, databases = (None if path is None else path.absolute() for path in (self.weights, self.databases))
        return replace(self, weights=weights, databases=databases)

    def search_options(self) -> SearchOptions:
        """Return the options of a search in this worker's databases."""
        return SearchOptions(databases=self.databases, threads=self.threads)


def predict_options(
    request: Mapping[str, Any], directory: Path, worker: WorkerOptions, output: Path, failures: Path
) -> PredictOptions:
    """Return the options of `helixfold predict` for a request whose files lie in `directory`."""
    options = request["options"]
    alignments = tuple(directory / name for name in request["alignments"])
    searches = options["search"] == "databases" or (options["search"] == "best" and not alignments)
    databases = worker.databases if searches else None
    latest = options["newest_template"]
    templates = tuple(directory / name for name in request["templates"])
    search = SearchOptions(
        msa=alignments,
        templates=templates or None,
        databases=databases,
        threads=worker.threads,
        max_template_date=None if latest is None else date.fromisoformat(latest),
    )
    model = options["model"] or usual_model(worker.models, request["sequence"].count(CHAIN_SEPARATOR) + 1)
    defaults = PredictOptions()
    return replace(
        defaults,
        inputs=(directory / "target.fasta",),
        targets=TargetOptions(output=output, failures_file=failures),
        search=search,
        complexes=ComplexOptions(pair_mode=options["pairing"]),
        models=ModelOptions(
            models=() if model is None else (model,),
            weights=worker.weights,
            seed=options["seed"],
            num_seeds=options["predictions"],
        ),
        compute=ComputeOptions(
            num_recycles=options["recycles"],
            dropout=options["dropout"],
            models_to_relax="best" if options["relax"] else "none",
        ),
        devices=DeviceOptions(device=worker.device),
        memory=replace(defaults.memory, memory=worker.memory),
        screen=ScreenOptions(progress="json"),
    )
