"""Fold a batch of targets, or forecast what folding it takes: everything that `helixfold predict` does."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace

import numpy as np
from tqdm import tqdm

from data_pipeline.claims import Claims
from data_pipeline.errors import InputError, printable
from data_pipeline.files import remove_partial_files
from data_pipeline.search.plan import SearchPlan
from helixfold.config import Method
from helixfold.execution.device import untried
from helixfold.execution.dtypes import AUTO, DTYPES, cast_trunk, common_dtype, settled_dtype
from helixfold.execution.recorded_passes import passes_on
from helixfold.execution.stages import Stages
from helixfold.folding import FoldingOptions
from helixfold.ops.card import card_of
from helixfold.parallel.worker_group import WorkerGroup, local_world_size
from helixfold.planning.memory import MemoryOptions
from helixfold.predict import memory_plan, relaxation
from helixfold.predict.jobs import Job, RunSettings
from helixfold.predict.lock import locked_output
from helixfold.predict.memory_plan import TargetForecast
from helixfold.predict.options import Order, PredictOptions, TargetOptions
from helixfold.predict.postprocess import colabfold_run, slim_down
from helixfold.predict.resume import ResumeStatus, begun_dtype, resume_status
from helixfold.predict.runner import EXPECTED_ERRORS, BatchRunner, archive_finished, close, close_part
from helixfold.predict.screen import format_estimate, print_warning
from helixfold.predict.search import (
    SOME_FAILED,
    check_earlier,
    check_output,
    search_for_all,
    share_unavailable,
    shared_directories,
    written_directories,
)
from helixfold.predict.search_plan import search_identities
from helixfold.predict.together import sizes_of_lots
from helixfold.predict.variants import variant_settings
from helixfold.presets import Preset
from helixfold.report.page import counted
from helixfold.report.pulldown import PulldownEntry, write_entries
from helixfold.weights.adapters import parse_adapters
from helixfold.weights.find import find_models
from helixfold.write.colabfold import write_log, write_run
from helixfold.write.provenance import recorded_command

_NO_WEIGHTS = (
    "no weights are configured, so the small demonstration model folds {targets}; run 'helixfold weights download', or "
    "pass --weights (or --models small to fold with the demonstration model on purpose)"
)
_MOST_LINES = 10  # about finished targets; more are counted in one line


def predict(
    jobs: Sequence[Job],
    options: PredictOptions,
    *,
    models: Sequence[str],
    folding: FoldingOptions,
    searches: SearchPlan,
    workers: WorkerGroup,
    pulldown: Sequence[PulldownEntry] = (),
) -> int:
    """Fold every target with every model into `<output>/<target>/`; return `exit_code_for` the failures.

    All input is read and checked before anything is written: wrong input raises `InputError`. Earlier results of the
    same settings are not made again unless `overwrite` is set. A target that fails is recorded in `failures.json` and
    never stops the others. A dry run writes and searches nothing; 1 then says that a target does not fit into memory.

    The complexes of a `pulldown` are also ranked in one table.

    All processes of a `workers` call this. Each group of them takes the next target when it is free, and the first
    process returns the exit code of all.
    """
    output, dry_run = options.targets.output, options.targets.dry_run
    jobs = _sorted(jobs, options.targets.sort_queries_by, folding.seed, several=workers.mesh.layout.dp > 1)
    loading = Stages(workers.mesh.device)

    def prepare() -> RunSettings:
        variants = variant_settings(options.conformations)
        limits = MemoryOptions(**vars(options.memory))
        with loading.stage("load parameters"):
            method: Method = "multimer" if jobs and all(job.chains > 1 for job in jobs) else "monomer"
            adapters = parse_adapters(options.models.adapter)
            found = find_models(models, options.models.weights, seed=folding.seed, method=method, adapters=adapters)
            ready = [limits.limited(model) for model in found]
            for model in ready:
                model.network.to(workers.mesh.device)
        _check_ranking(jobs, [model.preset for model in ready])
        trained = all(model.provenance == "trained" for model in ready)
        to_relax, remark = relaxation.chosen(options.compute.models_to_relax, trained=trained)
        if remark is not None and workers.mesh.is_first:
            print(f"helixfold: {remark}", file=sys.stderr)
        check = check_earlier if dry_run else check_output
        check(output, {job.name: job.sequence for job in jobs})
        return RunSettings(
            searches=searches,
            models=tuple(ready),
            options=folding,
            memory=limits.divided(local_world_size(), workers.mesh.device),
            workers=workers,
            num_seeds=options.models.num_seeds,
            variants=variants,
            references=options.conformations.reference,
            representations_format=options.compute.representations_format,
            to_relax=to_relax,
            output_format=options.targets.output_format,
            search_identities=search_identities(searches),
            is_slim=options.targets.slim,
            command=recorded_command(options.targets.command),
            prints_json=options.screen.progress == "json",
            targets_at_once=options.devices.targets_at_once,
        )

    settings = workers.world.run_together(prepare)
    graphs, ranks = options.devices.cuda_graphs, workers.group.size
    settings = replace(settings, passes=passes_on(workers.mesh.device, graphs, ranks, settings.say))
    reads_earlier = workers.mesh.is_first and folding.dtype == AUTO and not options.targets.overwrite
    begun = workers.world.run_together(lambda: begun_dtype(jobs, output, settings) if reads_earlier else None)
    settings = replace(settings, options=_with_settled_dtype(folding, begun, workers))
    for model in settings.models:
        cast_trunk(model.network, DTYPES[settings.options.dtype])
    if workers.mesh.is_first:
        if not models and options.models.weights is None and settings.models[0].provenance == "demonstration":
            print_warning(_NO_WEIGHTS.format(targets=counted(len(jobs), "target")), is_json=settings.prints_json)
        if (warning := untried(card_of(workers.mesh.device))) is not None:
            print(f"helixfold: {warning}", file=sys.stderr)
        for note in dict.fromkeys(note for job in jobs for note in job.notes(settings.models)):
            print(f"helixfold: {note}", file=sys.stderr)
    if dry_run:
        return _forecast(jobs, settings, options.targets) if workers.mesh.is_first else 0
    with locked_output(output, workers, is_shared=options.targets.is_shared), ExitStack() as stack:
        claims = None
        if options.targets.is_shared and workers.is_leader:
            # Before the directory is looked at: what others finish from then on is not looked for there.
            claims = stack.enter_context(closing(Claims.in_directory(output)))
        return _fold_all(jobs, settings, options.targets, loading, pulldown, claims=claims)


def _check_ranking(jobs: Sequence[Job], presets: Sequence[Preset]) -> None:
    """Raise `InputError` if predictions of a complex by these models cannot be ranked together."""
    without = [preset.name for preset in presets if not preset.model.heads.aligned_error]
    if without and len(without) < len(presets) and any(job.chains > 1 for job in jobs):
        raise InputError(
            f"{', '.join(without)} cannot be ranked with the other models, for without predicted errors there is no "
            "ipTM of a complex; choose models with _ptm or _multimer in their names, or only models without"
        )


def _with_settled_dtype(folding: FoldingOptions, begun: str | None, workers: WorkerGroup) -> FoldingOptions:
    """Replace the dtype "auto" by that of the targets that this run goes on with, or by the one that suits all devices.

    All processes call this together and get the same; `begun`, the targets' dtype, is what the first one has read.
    """
    if folding.dtype != AUTO:
        return folding
    found = workers.world.all_gather([begun, settled_dtype(AUTO, card_of(workers.mesh.device))])
    begun, suiting = found[0][0], common_dtype([own for _, own in found])
    if workers.mesh.is_first and begun not in (None, suiting):
        print(f"helixfold: computes in {begun}, in which earlier targets of this run were predicted", file=sys.stderr)
    return replace(folding, dtype=begun or suiting)


def _fold_all(
    jobs: Sequence[Job],
    settings: RunSettings,
    options: TargetOptions,
    loading: Stages,
    pulldown: Sequence[PulldownEntry],
    *,
    claims: Claims | None,
) -> int:
    workers, output = settings.workers, options.output
    # The first process looks for all, for others may begin to write before the last one has looked.
    own = workers.world.run_together(lambda: _statuses(jobs, settings, options) if workers.mesh.is_first else [])
    statuses = [ResumeStatus(**entry) for entry in workers.world.all_gather([asdict(status) for status in own])[0]]
    remaining = [(job, status) for job, status in zip(jobs, statuses, strict=True) if not status.finished]

    def search() -> None:
        if workers.mesh.is_first:
            if pulldown:
                write_entries(output, pulldown)
            if options.output_format == "colabfold":
                write_run(output, *colabfold_run(jobs, settings))
        finished = [output / status.name for status in statuses if status.finished]
        # In a shared directory, each target is cleared and searched for when it is claimed.
        if workers.mesh.is_first and not options.is_shared:
            shared = shared_directories(job.target for job in jobs if job.target is not None)
            remove_partial_files((*written_directories(output, [job.name for job in jobs]), *shared))
            if options.slim:
                for directory in finished:
                    slim_down(directory)
            search_for_all([job.target for job, _ in remaining if job.target is not None], settings.searches, output)
        # A run that was killed between the last prediction and the archive leaves this to the next one.
        if workers.mesh.is_first and options.zip:
            archive_finished(finished)

    lots = sizes_of_lots([None if job.is_complex else job.residues for job, _ in remaining], settings)
    with loading.stage("searches for all targets"):
        workers.world.run_together(search)
        share_unavailable(settings.searches, workers.world)
    if workers.mesh.is_first:
        workers.queue.open([job.name for job, _ in remaining], lots)
    runner = BatchRunner(
        remaining,
        lots,
        output,
        settings,
        overwrite=options.overwrite,
        archive=options.zip,
        claims=claims,
        is_shared=options.is_shared,
        is_part=options.failures_file is not None,
    )
    runner.run(loading.finished)
    workers.leave()
    if options.failures_file is not None:
        return close_part(workers.queue, options.failures_file) if workers.mesh.is_first else 0
    if workers.mesh.is_first and options.output_format == "colabfold":
        write_log(output, "Done")
    return close(workers.queue, output) if workers.mesh.is_first else 0


def _sorted(jobs: Sequence[Job], order: Order, seed: int, *, several: bool) -> list[Job]:
    """Sort short targets first, for early results; for several groups long ones, so that none is left at the end."""
    if order == "none":
        return list(jobs)
    if order == "random":
        return [jobs[number] for number in np.random.default_rng(seed).permutation(len(jobs))]
    return sorted(jobs, key=lambda job: job.residues, reverse=several)


def _statuses(jobs: Sequence[Job], settings: RunSettings, options: TargetOptions) -> list[ResumeStatus]:
    """Return what the run will do for each target, and print it where there are earlier results."""
    statuses = [resume_status(job, options.output / job.name, settings, overwrite=options.overwrite) for job in jobs]
    skipped = "would be skipped" if options.dry_run else "skipped"
    others = [status for status in statuses if status.finished and status.remark is not None]
    if others and not options.keep_existing:
        for status in others[1:]:
            tqdm.write(f"helixfold: {printable(str(options.output / status.name))}: {status.remark}", file=sys.stderr)
        these = "it" if len(others) == 1 else f"these {len(others)} of {len(jobs)} targets"
        raise InputError.at(
            options.output / others[0].name,
            f"{others[0].remark}; pass --overwrite to fold {these} again, another --output, or "
            f"(helixfold predict only) --keep-existing to skip {these}",
        )
    without_remark = sum(status.finished and status.remark is None for status in statuses)
    if without_remark > _MOST_LINES:
        tqdm.write(f"{without_remark} targets: finished before, {skipped} (--overwrite folds them again)")
    for status in statuses:
        if status.remark is not None and not status.finished:
            tqdm.write(f"{status.name}: {status.remark}")
        elif status.remark is not None or (status.finished and without_remark <= _MOST_LINES):
            remark = status.remark or "finished before"
            tqdm.write(f"{status.name}: {remark}, {skipped} (--overwrite folds it again)")
    return statuses


def _forecast(jobs: Sequence[Job], settings: RunSettings, options: TargetOptions) -> int:
    """Print what each target takes; return 1 if one does not fit into memory or cannot be read."""
    forecasts: list[TargetForecast] = []
    failed, predictions, seconds = False, 0, 0.0
    statuses = _statuses(jobs, settings, options)
    remaining = [(job, status) for job, status in zip(jobs, statuses, strict=True) if not status.finished]
    for job, status in remaining:
        predictions += status.missing
        try:
            found = list(job.forecast(options.output / job.name, settings))
            forecasts += found
            # Some of its predictions may be there already.
            seconds += sum(each.seconds for each in found) * status.missing / len(settings.predictions())
        except EXPECTED_ERRORS as error:
            failed = True
            print(f"{job.name}: would fail: {type(error).__name__}: {error}", file=sys.stderr)
    for line in memory_plan.table(forecasts):
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
    return SOME_FAILED if failed or not all(forecast.plan.fits for forecast in forecasts) else 0
