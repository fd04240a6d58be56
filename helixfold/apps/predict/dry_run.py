"""Dry run of `helixfold predict`: print estimated memory and time, per target or as a summary of a large batch."""

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from data_pipeline.features.complexes.complex_input import ComplexInput
from data_pipeline.features.complexes.pipeline import target_features
from data_pipeline.search.plan import SearchPlan
from helixfold.apps.predict.jobs import Job
from helixfold.apps.predict.resume import ResumeStatus
from helixfold.apps.predict.settings import RunSettings
from helixfold.execution.iteration_runner import bucket_size
from helixfold.folding.model_input import model_input
from helixfold.model.presets import Preset
from helixfold.planning.estimate import TARGET_SECONDS, Device, PredictionEstimate
from helixfold.planning.memory import FeatureRows
from helixfold.planning.size import gib
from helixfold.report.page import counted
from helixfold.results.failures import EXPECTED_ERRORS, SOME_FAILED
from helixfold.runtime.screen import format_estimate
from helixfold.runtime.standard_streams import is_verbose

MAX_ROWS = 20  # max number of targets for which each has a row without --verbose
_MAX_PROBLEM_LINES = 10  # about targets that do not fit; others are counted in one line


@dataclass(frozen=True, kw_only=True)
class TargetEstimate:
    """Row of a dry run's table: the plan of one target with one model, and the seconds of its predictions.

    `target` and `model` are names. `rows` are the numbers of residues and MSA rows, or bounds of them. `seconds` are
    for the predictions of all seeds, also of those that are finished.
    """

    target: str
    model: str
    rows: FeatureRows
    plan: PredictionEstimate
    seconds: float


def print_dry_run(jobs: Sequence[Job], statuses: Sequence[ResumeStatus], settings: RunSettings) -> int:
    """Print the estimated memory and time of all unfinished targets; return 1 if one does not fit or cannot be read.

    `statuses` are the remaining work of each of `jobs`. More than `MAX_ROWS` targets are summarized without --verbose.
    """
    remaining = [(job, status) for job, status in zip(jobs, statuses, strict=True) if not status.finished]
    is_summary = len(remaining) > MAX_ROWS and not is_verbose()
    available = settings.memory.available(settings.device, settings.options.output)
    estimates: list[TargetEstimate] = []
    failed, seconds = False, 0.0
    for job, status in remaining:
        try:
            rows = list(_estimates(job, settings, available, is_rounded=is_summary))
        except EXPECTED_ERRORS as error:
            failed = True
            print(f"{job.name}: would fail: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        estimates += rows
        # Finished predictions of the target take no time.
        seconds += TARGET_SECONDS + sum(each.seconds for each in rows) * status.missing / len(settings.predictions())
    if estimates:
        lines = _summary(estimates, settings) if is_summary else _table(estimates)
        print(*lines, *_problems(estimates, settings), sep="\n")
    predictions = sum(status.missing for _, status in remaining)
    seeds_text = "" if settings.options.num_seeds == 1 else f" with {settings.options.num_seeds} seeds each"
    print(
        f"{len(remaining):,} of {counted(len(jobs), 'target')} to fold: {counted(predictions, 'prediction')} by "
        f"{', '.join(model.preset.name for model in settings.models)}{seeds_text}"
        f"{', at least, as clusters are known once there is an alignment' if settings.variants.clusters else ''}, "
        f"{counted(settings.num_recycles, 'recycle')}; to relax: {settings.to_relax}"
    )
    print(
        f"estimated time in all: {format_estimate(seconds / settings.workers.mesh.layout.dp)}, by the speed of this "
        "device; searches and relaxation come on top"
    )
    return SOME_FAILED if failed or not all(each.plan.fits for each in estimates) else 0


def _estimates(job: Job, settings: RunSettings, available: Device, *, is_rounded: bool) -> Iterator[TargetEstimate]:
    """Yield the estimated memory and time of a target with each model, without writing or searching.

    With `is_rounded`, lengths and MSA depths are rounded up, so that few sizes are counted for many targets.
    """
    features, target, searches = job.features, job.target, settings.searches
    templates = searches.templates is not None or (target is not None and bool(target.templates))
    is_alone = False
    if target is not None and not searches.alignments and (searches.templates is None or target.templates):
        # The MSA of a chain without alignments, searches and templates has one row.
        is_alone = not (templates or isinstance(target, ComplexInput) or target.alignments)
        if not is_alone:
            with warnings.catch_warnings(action="ignore"):  # about unused templates, which the run itself reports
                features = target_features(target, SearchPlan(user_templates=searches.user_templates))
    for model in settings.models:
        if features is not None:
            rows = FeatureRows.of(model_input(features, model.preset).features)
        elif is_alone:
            rows = FeatureRows(residues=job.residues, alignment=1, templates=0)
        else:
            rows = FeatureRows.at_most(job.residues, model.preset.sampling, templates=templates)
        plan = settings.plan(model, _rounded(rows, model.preset) if is_rounded else rows, available)
        if is_rounded and not plan.fits:
            plan = settings.plan(model, rows, available)
        seconds = plan.of(plan.executor, residues=rows.residues).seconds
        yield TargetEstimate(target=job.name, model=model.preset.name, rows=rows, plan=plan, seconds=seconds)


def _rounded(rows: FeatureRows, preset: Preset) -> FeatureRows:
    """Return the numbers rounded up to bucket sizes, with at most as many rows as a model reads."""
    max_rows = preset.sampling.max_msa_clusters + preset.sampling.max_extra_msa
    rounded_rows = rows.alignment if rows.alignment < 16 else bucket_size(rows.alignment)
    return replace(rows, residues=bucket_size(rows.residues), alignment=min(rounded_rows, max_rows))


def _summary(estimates: Sequence[TargetEstimate], settings: RunSettings) -> Iterator[str]:
    """Yield the summary of a batch: lengths, searches, executors, the longest and the slowest target."""
    lengths = sorted(each.rows.residues for each in estimates)
    longest = max(estimates, key=lambda each: each.rows.residues)
    median = lengths[len(lengths) // 2]
    yield f"residues: {lengths[0]:,} to {lengths[-1]:,} (longest: {longest.target}), median {median:,}"
    plan = settings.searches
    steps = (*plan.alignments, plan.pairing, plan.uniprot, plan.templates, plan.complex_templates)
    names = dict.fromkeys(each.name for step in steps if step is not None for each in step.databases)
    yield f"searched for each target: {', '.join(names) or 'nothing; sequences and alignments are used as they are'}"
    executors = Counter(each.plan.executor if each.plan.fits else "none" for each in estimates)
    peak = gib(longest.plan.memory.peak)
    yield (
        f"executors: {', '.join(f'{name} {count:,}' for name, count in executors.most_common())}; the longest target "
        f"needs at most {peak} of the available {gib(longest.plan.device.memory)}"
    )
    slowest = max(estimates, key=lambda each: each.seconds)
    yield f"time of the slowest: {format_estimate(slowest.seconds)} ({slowest.target}, {slowest.model})"
    yield "(--verbose lists all targets)"


def _table(estimates: Sequence[TargetEstimate]) -> Iterator[str]:
    """Yield the lines of a table with a row for each target and model."""
    if (ranks := estimates[0].plan.size.ranks) > 1:
        yield f"of each of the {ranks} processes that fold a target together:"
    width = max([6, *(len(each.target) for each in estimates)])
    model_width = max([5, *(len(each.model) for each in estimates)])
    yield (
        f"{'target':{width}}  {'model':{model_width}} {'residues':>8} {'MSA rows':>9} {'extra rows':>10} "
        f"{'templates':>9}  {'executor':8} {'peak GiB':>8} {'room GiB':>8} {'spilled GiB':>11} {'time':>12}"
    )
    for each in estimates:
        plan, size, bound_sign = each.plan, each.plan.size, "<= " if each.rows.is_bound else ""
        row_counts = f"{bound_sign + format(size.msa_rows, ','):>9} {bound_sign + format(size.extra_rows, ','):>10}"
        templates = f"{bound_sign}{size.templates}" if size.templates else "0"
        spilled = f"{plan.memory.spilled / 2**30:,.1f}" if plan.executor == "spilled" else "-"
        yield (
            f"{each.target:{width}}  {each.model:{model_width}} {size.residues:8,} {row_counts} {templates:>9}  "
            f"{plan.executor if plan.fits else 'none':8} {plan.memory.peak / 2**30:8,.1f} "
            f"{plan.device.memory / 2**30:8,.1f} {spilled:>11} {format_estimate(each.seconds):>12}"
        )


def _problems(estimates: Sequence[TargetEstimate], settings: RunSettings) -> Iterator[str]:
    """Yield why targets do not fit, and what would fit; without --verbose, only for the shortest targets."""
    unfit_estimates = sorted((each for each in estimates if not each.plan.fits), key=lambda each: each.rows.residues)
    listed_estimates = unfit_estimates if is_verbose() else unfit_estimates[:_MAX_PROBLEM_LINES]
    yield from (f"{each.target}: {each.model}: {settings.memory.problem(each.plan)}" for each in listed_estimates)
    if len(unfit_estimates) > len(listed_estimates):
        yield f"{len(unfit_estimates) - len(listed_estimates):,} more do not fit (--verbose lists them)"
