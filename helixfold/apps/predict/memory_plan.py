"""Tell how much memory and time targets take before they are folded: the forecast of a dry run, and remarks."""

import itertools
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from data_pipeline.features.complexes.pipeline import target_features
from data_pipeline.search.plan import SearchPlan
from helixfold.apps.predict.jobs import Job
from helixfold.apps.predict.resume import ResumeStatus
from helixfold.apps.predict.settings import RunSettings
from helixfold.folding.model_input import model_input
from helixfold.model.presets import Preset
from helixfold.planning.estimate import Device, Prediction, PredictionEstimate, estimate, max_residues
from helixfold.planning.executors import EXECUTORS
from helixfold.planning.memory import FeatureRows
from helixfold.planning.size import dtype_name, gib
from helixfold.report.page import counted
from helixfold.results.failures import EXPECTED_ERRORS, SOME_FAILED
from helixfold.runtime.screen import format_estimate

# How a model folds a target, for the table of a dry run: the target, the model, the input's rows, and the estimate.
_Row = tuple[str, str, FeatureRows, PredictionEstimate]


def print_forecast(jobs: Sequence[Job], statuses: Sequence[ResumeStatus], settings: RunSettings) -> int:
    """Print what each target takes; return 1 if one does not fit into memory or cannot be read."""
    rows: list[_Row] = []
    failed, predictions, seconds = False, 0, 0.0
    remaining = [(job, status) for job, status in zip(jobs, statuses, strict=True) if not status.finished]
    for job, status in remaining:
        predictions += status.missing
        try:
            found = list(_rows(job, settings))
            rows += found
            # Some of its predictions may be there already.
            seconds += sum(each.seconds for *_, each in found) * status.missing / len(settings.predictions())
        except EXPECTED_ERRORS as error:
            failed = True
            print(f"{job.name}: would fail: {type(error).__name__}: {error}", file=sys.stderr)
    for line in table(rows):
        print(line)
    seeds = "" if settings.num_seeds == 1 else f" with {settings.num_seeds} seeds each"
    print(
        f"{len(remaining)} of {counted(len(jobs), 'target')} to fold: {counted(predictions, 'prediction')} by "
        f"{', '.join(model.preset.name for model in settings.models)}{seeds}"
        f"{', at least, as clusters are known once there is an alignment' if settings.variants.clusters else ''}, "
        f"{counted(settings.num_recycles, 'recycle')}; to relax: {settings.to_relax}"
    )
    print(
        f"estimated time in all: {format_estimate(seconds / settings.workers.mesh.layout.dp)}, by the speed of this "
        "device; searches, relaxation and writing come on top"
    )
    return SOME_FAILED if failed or not all(each.fits for *_, each in rows) else 0


def _rows(job: Job, settings: RunSettings) -> Iterator[_Row]:
    """Yield the memory and the time that folding a target takes with each model; nothing is written or searched."""
    features, target, searches = job.features, job.target, settings.searches
    directory = settings.options.output / job.name
    if target is not None and not searches.alignments and (searches.templates is None or target.templates):
        with warnings.catch_warnings(action="ignore"):  # about unused templates, which the run itself reports
            features = target_features(target, SearchPlan(user_templates=searches.user_templates))
    templates = searches.templates is not None or (target is not None and bool(target.templates))
    for model in settings.models:
        rows = FeatureRows.at_most(job.residues, model.preset.sampling, templates=templates)
        if features is not None:
            rows = FeatureRows.of(model_input(features, model.preset).features)
        found = settings.plan(model, rows, settings.memory.available(settings.device, directory))
        yield job.name, model.preset.name, rows, found


def remark(chosen: PredictionEstimate, model: str, directory: Path) -> str | None:
    """Describe a plan that spills, or does not fit and is tried; None for an ordinary one."""
    peak, available = gib(chosen.memory.peak), gib(chosen.device.memory)
    if not chosen.fits:
        return (
            f"{model} is predicted to take {peak}, and there are {available}; tried, for --executor {chosen.executor}"
        )
    if chosen.executor != "spilled":
        return None
    place = str(directory) if chosen.device.card.kind == "cpu" else "the host's memory"
    return f"{model} spills {gib(chosen.memory.spilled)} to {place} and takes {peak} of the {available} that there are"


def table(rows: Sequence[_Row]) -> Iterator[str]:
    """Yield the lines of a dry run's table, and under them why targets do not fit and what would."""
    if not rows:
        return
    if (ranks := rows[0][-1].size.ranks) > 1:
        yield f"of each of the {ranks} processes that fold a target together:"
    width = max([6, *(len(target) for target, *_ in rows)])
    models = max([5, *(len(model) for _, model, *_ in rows)])
    yield (
        f"{'target':{width}}  {'model':{models}} {'residues':>8} {'MSA rows':>9} {'extra rows':>10} {'templates':>9}  "
        f"{'executor':8} {'peak GiB':>8} {'room GiB':>8} {'spilled GiB':>11} {'time':>12}"
    )
    for target, model, counts, found in rows:
        size, bound = found.size, "<= " if counts.is_bound else ""
        msa = f"{bound + format(size.msa_rows, ','):>9} {bound + format(size.extra_rows, ','):>10}"
        templates = f"{bound}{size.templates}" if size.templates else "0"
        spilled = _number(found.memory.spilled) if found.executor == "spilled" else "-"
        yield (
            f"{target:{width}}  {model:{models}} {size.residues:8,} {msa} {templates:>9}  "
            f"{found.executor if found.fits else 'none':8} {_number(found.memory.peak):>8} "
            f"{_number(found.device.memory):>8} {spilled:>11} {format_estimate(found.seconds):>12}"
        )
    for target, model, _, found in rows:
        if not found.fits:
            yield f"{target}: {model}: {found.problem}"


def machine_facts(presets: Iterable[Preset], residues: int, device: Device) -> dict[str, Any]:
    """Return, for `helixfold doctor`, every executor's peak in bytes of each model, and the longest chain that slabs
    and spilled streams have room for.
    """
    models = []
    for preset, dtype in itertools.product(presets, (torch.float32, torch.bfloat16)):
        work = Prediction(model=preset.model, size=FeatureRows.at_most(residues, preset.sampling).size(preset, dtype))
        found = estimate(work, device)
        models.append(
            {
                "model": preset.name,
                "dtype": dtype_name(dtype),
                "executor": found.executor if found.fits else None,
                "peak": {name: found.of(name).memory.peak for name in EXECUTORS},
                # Whole streams are for short chains.
                "longest": {name: max_residues(work, device, [name]) for name in EXECUTORS[1:]},
            }
        )
    return {"device": device.card.name, "free": device.memory, "residues": residues, "models": models}


def machine_table(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of `machine_facts` for people."""
    if "problem" in facts:
        yield f"memory: {facts['problem']}"
        return
    yield (
        f"memory of {facts['device']}, {gib(facts['free'])} free, for {facts['residues']:,} residues and all rows that "
        "a model reads: GiB at the peak (residues of the longest chain)"
    )
    yield f"  {'':24}{''.join(f'{name:>18}' for name in EXECUTORS)}   chosen"
    for model in facts["models"]:
        cells = ""
        for name, peak in model["peak"].items():
            most = f" ({model['longest'][name]:,})" if name in model["longest"] else ""
            cells += f"{_number(peak) + most:>18}"
        yield f"  {model['model']:13}{model['dtype']:11}{cells}   {model['executor'] or 'none'}"


def _number(size: int) -> str:
    return f"{size / 2**30:,.1f}"
