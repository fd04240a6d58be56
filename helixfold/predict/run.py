"""Run `helixfold predict` in this process, together with the other processes of its worker group.

A run folds a batch of targets, or forecasts what folding it takes.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data_pipeline.claims import Claims
from data_pipeline.complexes.complex_input import AnyTarget
from data_pipeline.errors import InputError, printable
from data_pipeline.files import remove_partial_files
from data_pipeline.parse.fasta import directory_name
from data_pipeline.parse.structures import read_structure
from data_pipeline.search.plan import SearchPlan
from helixfold.config import Method
from helixfold.execution import allocator
from helixfold.execution.device import AUTO, DTYPES, cast_trunk, common_dtype, limit_threads, settled_dtype, untried
from helixfold.execution.recorded_passes import passes_on
from helixfold.execution.stages import Stages
from helixfold.folding.initial_guess import guess_of
from helixfold.folding.options import FoldingOptions
from helixfold.ops.card import card_of
from helixfold.options import given, part_of
from helixfold.parallel.worker_group import OtherRankError, WorkerGroup, join_workers, local_world_size
from helixfold.planning.memory import MemoryOptions
from helixfold.predict import memory_plan, relaxation
from helixfold.predict.jobs import Job, RunSettings
from helixfold.predict.lock import locked_output
from helixfold.predict.lot import serve_folds, sizes_of_lots
from helixfold.predict.memory_plan import TargetForecast
from helixfold.predict.options import EXAMPLE, EXAMPLE_TEMPLATE, Order, PredictOptions, TargetOptions
from helixfold.predict.postprocess import colabfold_run, slim_down
from helixfold.predict.presets import PREDICTION_PRESETS
from helixfold.predict.resume import ResumeStatus, begun_dtype, resume_status
from helixfold.predict.runner import EXPECTED_ERRORS, BatchRunner, archive_finished, close, close_part
from helixfold.predict.screen import format_estimate, logged_screen, print_warning
from helixfold.predict.search import (
    FEATURES_FILE,
    SOME_FAILED,
    check_earlier,
    check_output,
    pulldown_of_features,
    read_features,
    search_for_all,
    share_unavailable,
    shared_directories,
    unfinished_features,
    written_directories,
)
from helixfold.predict.search_plan import plan_of, print_complex_notes, search_identities, selected_alignments
from helixfold.predict.targets import (
    INPUT_SUFFIXES,
    check_names,
    directory_in,
    is_sequence,
    pulldown_targets,
    read_targets,
    with_search_files,
)
from helixfold.predict.variants import variant_settings
from helixfold.presets import Preset
from helixfold.report.page import counted
from helixfold.report.pulldown import PulldownEntry, write_entries
from helixfold.standard_streams import optional_output
from helixfold.weights.adapters import parse_adapters
from helixfold.weights.find import find_models
from helixfold.write.colabfold import write_log, write_run
from helixfold.write.provenance import recorded_command

_NO_WEIGHTS = (
    "no weights are configured, so the small demonstration model folds {targets}; run 'helixfold weights download', or "
    "pass --weights (or --models small to fold with the demonstration model on purpose)"
)
_MOST_LINES = 10  # about finished targets; more are counted in one line


def run(options: PredictOptions, given_targets: Sequence[AnyTarget] | None = None) -> int:
    """Predict all targets and return the exit code: 0, or 1 or 3 if a target failed.

    `given_targets` take the place of those in the files that `options` name. Raise `InputError` for wrong
    input, before anything is written.
    """
    allocator.keep_few_kernels()
    limit_threads()
    devices = options.devices
    try:
        with (
            logged_screen(options.screen.log_file),
            nullcontext() if options.targets.dry_run else optional_output(),
            join_workers(devices.device, devices.ranks_per_target) as workers,
            allocator.keeping_freed_memory(),
        ):
            models, folding, jobs, searches, pulldown = workers.world.run_together(
                lambda: _read(options, given_targets, announce=workers.mesh.is_first)
            )
            return predict(
                jobs,
                options,
                models=models,
                folding=folding,
                searches=searches,
                workers=workers,
                pulldown=pulldown,
            )
    except OtherRankError:
        return 0  # the process with the error reports it and returns the exit code


def _read(
    options: PredictOptions, given_targets: Sequence[AnyTarget] | None = None, *, announce: bool
) -> tuple[Sequence[str], FoldingOptions, list[Job], SearchPlan, list[PulldownEntry]]:
    """Return the models' names, the folding options, the targets to predict, the plan of their searches and, of a
    pulldown, the entries of its table.
    """
    models, folding = folding_of(options)
    if options.targets.features and not options.inputs and (names := given(options.search)) and names != ["--threads"]:
        raise InputError(f"{names[0]} would do nothing: features are ready; give it the sequences")
    plan = plan_of(options.search, announce=announce, dry_run=options.targets.dry_run)
    targets, pulldown = requested_targets(options, given_targets, announce=announce)
    ready = read_features(options.targets.features)
    if announce and (unfinished := unfinished_features(options.targets.features)):
        text = f"left out, as they have no {FEATURES_FILE}: {', '.join(map(str, unfinished))}"
        print(f"helixfold: {printable(text, 1000)}; helixfold features makes the rest", file=sys.stderr)
    pulldown += pulldown_of_features(options.targets.features, {directory_name(each.domain_name) for _, each in ready})
    jobs = [*(Job(target=target) for target in targets), *(Job(features=features) for _, features in ready)]
    output = options.targets.output
    jobs = [replace(job, directory=directory_in(output, job.title).name) for job in jobs]
    if not jobs:
        raise InputError("there is nothing to fold; name a FASTA file, an alignment, or --features")
    _check_references(options.conformations.reference)
    if (guess := options.compute.initial_guess) is not None:
        jobs = [replace(job, initial_guess=guess_of(guess, job.title, only=len(jobs) == 1)) for job in jobs]
    for name in options.complexes.cyclic or ():
        if not any(name in job.chain_ids for job in jobs):
            raise InputError(f"--cyclic {printable(name)}: no target has a chain of this name")
    taken = {target.name: Path("the targets") for target in targets}
    check_names([*taken.items(), *((features.domain_name, path) for path, features in ready)])
    if (shard := options.targets.shard) is not None:
        count, jobs = len(jobs), part_of(jobs, shard)
        if not jobs:
            raise InputError(f"there is no target in shard {shard[0]}/{shard[1]} of {counted(count, 'target')}")
    return models, folding, jobs, plan, pulldown


def _check_references(paths: Sequence[Path]) -> None:
    """Read structures that samples will be compared to; raise `InputError` for what is wrong with one."""
    if not paths:
        return
    # Takes long to import.
    from helixfold.analysis.matching import structure_files  # noqa: PLC0415

    for file in (each for path in paths for each in structure_files(path)):
        read_structure(file.path)


def requested_targets(
    options: PredictOptions, given_targets: Sequence[AnyTarget] | None = None, *, announce: bool
) -> tuple[list[AnyTarget], list[PulldownEntry]]:
    """Return the targets of the options' files, or those given, with their alignments and templates, and the entries of
    a pulldown's table.

    Of several processes one should `announce` what is left out. Raise `InputError` for wrong input.
    """
    inputs = _inputs(options)
    example = (EXAMPLE_TEMPLATE,) if options.targets.example and options.search.templates is None else ()
    own_files = options.search.msa, options.search.templates or example
    targets: list[AnyTarget]
    complexes, pulldown = pulldown_targets(options)
    if complexes:
        targets = complexes
    elif given_targets is None:
        targets = read_targets(inputs, *own_files, options.complexes, as_protein=options.targets.as_protein)
    else:
        targets = with_search_files(given_targets, *own_files)
    targets = selected_alignments(targets, options.search, announce=announce)
    if announce:
        print_complex_notes(options.search, targets)
    return targets, pulldown


def _inputs(options: PredictOptions) -> tuple[Path, ...]:
    """Return the input files, or the example with --example. Raise `InputError` if they do not go together."""
    inputs = options.inputs
    if options.targets.example:
        if inputs or options.targets.features:
            raise InputError(
                "--example predicts the protein that comes with helixfold; leave out your own files, or --example"
            )
        return (EXAMPLE,)
    last = inputs[-1] if len(inputs) > 1 else None
    if last and not (os.path.exists(last) or last.name.lower().endswith(INPUT_SUFFIXES) or is_sequence(last)):
        # ColabFold takes the output directory last, and it need not exist.
        raise InputError.at(last, f"there is no such file; to write results there, give --output {last}")
    return inputs


def folding_of(options: PredictOptions) -> tuple[Sequence[str], FoldingOptions]:
    """Return the names of the models and the folding options: as given, else the preset's, else the defaults.

    Raise `InputError` if a preset of several models is given with a single file of weights.
    """
    models, compute = options.models, options.compute
    preset = None if models.preset is None else PREDICTION_PRESETS[models.preset]
    if preset is not None and not models.models and models.weights is not None and models.weights.is_file():
        raise InputError(
            f"{models.weights} is one file of parameters and --preset names {', '.join(preset.models)}; "
            "give --models, or a directory of weights"
        )
    chosen = {}
    for name in ("num_recycles", "recycle_tolerance", "num_ensemble"):
        value = getattr(compute, name)
        if value is None and preset is not None:
            value = getattr(preset, name)
        if value is not None:
            chosen[name] = value
    return models.models or (() if preset is None else preset.models), FoldingOptions(
        **chosen,
        logits=compute.save_logits,
        representations=compute.save_representations,
        dropout=compute.dropout,
        save_passes=compute.save_recycles,
        cyclic=options.complexes.cyclic,
        seed=models.seed,
        dtype=compute.dtype,
        stop_at_score=models.stop_at_score,
    )


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
    if not workers.is_leader:
        serve_folds(jobs, output, settings)
        workers.leave()
        return 0
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
    workers.group.send(None)
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
