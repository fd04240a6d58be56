"""Run `helixfold predict` in this process, together with the other processes of its worker group.

It reads the targets, searches, and computes features, predictions and reports of each target; or it does a dry run.
"""

import itertools
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from tqdm import tqdm

from data_pipeline.features.complexes.complex_input import AnyTarget
from data_pipeline.io.claims import Claims
from data_pipeline.io.errors import InputError, input_problems, printable
from data_pipeline.io.files import remove_partial_files
from data_pipeline.search.plan import SearchPlan
from helixfold.apps.options import MemoryLimits, PredictOptions
from helixfold.apps.predict import relaxation
from helixfold.apps.predict.dry_run import print_dry_run
from helixfold.apps.predict.jobs import Batch, Job, read_jobs
from helixfold.apps.predict.lot import serve_folds, sizes_of_lots
from helixfold.apps.predict.postprocess import colabfold_run
from helixfold.apps.predict.resume import ResumeStatus, begun_dtype, restore, resume_status
from helixfold.apps.predict.runner import BatchRunner, archive_finished, close_batch
from helixfold.apps.predict.settings import Part, RunSettings, folding_of
from helixfold.apps.predict.similar_structures import require_foldseek
from helixfold.apps.predict.variants import variant_settings
from helixfold.apps.search import (
    check_earlier,
    contacts_of,
    search_for_all,
    shared_directories,
    written_directories,
)
from helixfold.execution import allocator
from helixfold.execution.device import AUTO, common_dtype, limit_threads, settled_dtype, untested_warning
from helixfold.execution.iteration_runner import runner_for
from helixfold.execution.stages import Stages
from helixfold.folding.model_input import require_multimer, restraints_problem
from helixfold.model.config import Method
from helixfold.model.presets import Preset
from helixfold.ops.device_properties import properties_of
from helixfold.parallel.worker_group import OtherRankError, WorkerGroup, join_workers, local_world_size
from helixfold.planning.memory import MemoryOptions
from helixfold.report.page import counted
from helixfold.report.pulldown import write_entries
from helixfold.results.colabfold import write_log, write_run
from helixfold.results.failures import SOME_FAILED, exit_code_for, write_failures
from helixfold.results.file_table import slim_down
from helixfold.results.lock import locked_directory
from helixfold.results.packed import PackedResults, remove_partial
from helixfold.runtime.options import values_of
from helixfold.runtime.screen import logged_screen, print_warning
from helixfold.runtime.standard_streams import optional_output, print_note, print_summary
from helixfold.weights.adapters import parse_adapters
from helixfold.weights.find import ReadyModel, find_models

_NO_WEIGHTS_WARNING = (
    "no weights are configured, so the small demonstration model folds {targets}; run 'helixfold weights download', or "
    "pass --weights (or --models small to fold with the demonstration model on purpose)"
)
_MAX_FINISHED_LINES = 10  # about finished targets; others are counted in one line


def run(options: PredictOptions, given_targets: Sequence[AnyTarget] | None = None, part: Part | None = None) -> int:
    """Fold every target with every model into `<output>/<target>/`; return the exit code (`exit_code_for`).

    `given_targets` replaces the targets in the files of `options`. With `part`, this run folds a part of a larger
    batch, and the run of the whole batch writes failures.json and the pages of all targets. All input is checked before
    anything is written; wrong input raises `InputError`. Earlier results with the same settings are kept unless the
    options overwrite them. A failed target is recorded in failures.json and does not stop the others. A dry run does
    not search or write files, and returns 1 if a target does not fit into memory.

    All processes of a run call this. The first one reads the output directory and runs the searches. Each group of
    processes takes the next targets when it is free. The first process returns the exit code of the whole run.
    """
    allocator.keep_few_kernels()
    limit_threads()
    if options.zip and options.output_format == "packed":
        raise InputError("--zip and --output-format packed cannot be combined; leave one of them out")
    if options.foldseek is not None:
        require_foldseek(options.foldseek)
    try:
        with (
            logged_screen(options.log_file),
            nullcontext() if options.dry_run else optional_output(),
            join_workers(options.device, options.ranks_per_target) as workers,
            allocator.keeping_freed_memory(),
            ExitStack() as stack,
        ):
            is_first, loading = workers.mesh.is_first, Stages(workers.mesh.device)
            with workers.world.together():
                batch = read_jobs(options, given_targets, announce=is_first)
                jobs = _sorted(batch.jobs, options, several=workers.mesh.layout.dp > 1)
                with loading.stage("load parameters"):
                    settings = settings_for(jobs, options, batch.searches, workers, part)
            own_dtype = settled_dtype(settings.folding.dtype, properties_of(settings.device))
            dtype = common_dtype(workers.world.all_gather(own_dtype))
            if options.dry_run:
                if not is_first:
                    return 0
                check_earlier(options.output, {job.name: job.sequence for job in jobs})
                settings, statuses = _resumed(jobs, settings, dtype)
                code = print_dry_run(jobs, statuses, settings)
                return SOME_FAILED if batch.invalid else code
            with loading.stage("searches for all targets"):
                if is_first:
                    with workers.world.leading():
                        check_earlier(options.output, {job.name: job.sequence for job in jobs})
                        claims = _entered(stack, settings)
                        work = _begin(replace(batch, jobs=jobs), settings, dtype)
                        workers.world.send(work)
                elif (work := workers.world.receive()) is None:
                    return 0  # the first process reports why
                else:
                    claims = _entered(stack, settings)
                    for contact, problem in zip(contacts_of(batch.searches), work["servers"], strict=True):
                        contact.problem = problem
            settings = settings.computing_in(work["dtype"])
            if not workers.is_leader:
                serve_folds(jobs, settings)
                workers.leave()
                return 0
            remaining = [(jobs[index], missing) for index, missing in work["remaining"]]
            unpacked = work["directories"] if is_first else ()
            BatchRunner(remaining, work["lots"], settings, claims, unpacked).run(loading.finished)
            workers.group.send(None)
            workers.leave()
            return _end(settings) if is_first else 0
    except OtherRankError:
        return 0  # the process with the error reports it and returns the exit code


def settings_for(
    jobs: Sequence[Job],
    options: PredictOptions,
    searches: SearchPlan,
    workers: WorkerGroup,
    part: Part | None = None,
) -> RunSettings:
    """Load the models onto the device of this process, and return the settings of a run with these jobs.

    Models that `part` has already loaded are used again. The first process prints a note if nothing is relaxed because
    OpenMM is not installed.
    Raise `InputError` for contradictory options, and for models and weights that cannot be used.
    """
    variants = variant_settings(options)  # checks options before the models are loaded, which takes long
    names, folding = folding_of(options)
    limits, device = MemoryOptions(**values_of(options, MemoryLimits)), workers.mesh.device
    method: Method = "multimer" if jobs and all(job.chains > 1 for job in jobs) else "monomer"
    adapters = parse_adapters(options.adapter)
    loaded = {} if part is None else part.loaded
    if (key := (names, options.weights, folding.seed, method)) not in loaded:
        loaded.clear()
        all_models = find_models(names, options.weights, seed=folding.seed, method=method, adapters=adapters)
        loaded[key] = tuple(limits.limited(model) for model in all_models)
    models: tuple[ReadyModel, ...] = loaded[key]
    for model in models:
        model.network.to(device)
    _check_models(jobs, [model.preset for model in models])
    trained = all(model.provenance == "trained" for model in models)
    to_relax, remark = relaxation.predictions_to_relax(options.models_to_relax, trained=trained)
    if remark is not None and workers.mesh.is_first:
        print_note(remark)
    settings = RunSettings(
        options=options,
        folding=folding,
        searches=searches,
        models=models,
        memory=limits.divided(local_world_size(), device),
        variants=variants,
        to_relax=to_relax,
        workers=workers,
        part=part,
    )
    runner = runner_for(device, options.cuda_graphs, workers.group.size, settings.say)
    return replace(settings, iteration_runner=loaded.setdefault("iteration_runner", runner))


def _check_models(jobs: Sequence[Job], presets: Sequence[Preset]) -> None:
    """Raise `InputError` if the models cannot fold one of the targets, or predictions of it cannot be ranked."""
    models_without_errors = [preset.name for preset in presets if not preset.model.heads.aligned_error]
    if 0 < len(models_without_errors) < len(presets) and any(job.chains > 1 for job in jobs):
        raise InputError(
            f"{', '.join(models_without_errors)} cannot be ranked with the other models, because a model without "
            "predicted errors has no ipTM; choose models with _ptm or _multimer in their names, or only models without"
        )
    with input_problems() as problems:
        for job, preset in itertools.product(jobs, presets):
            if (problem := restraints_problem(preset, job.distance_restraints, job.chains)) is not None:
                problems.add(InputError(f"'{printable(job.title)}': {problem}"))
    for preset in presets if any(job.has_cross_chain_templates for job in jobs) else ():
        require_multimer(preset)


def _entered(stack: ExitStack, settings: RunSettings) -> Claims | None:
    """Lock the output directory until the stack is closed; return the claims in it if several runs share it."""
    options, workers = settings.options, settings.workers
    is_shared, has_others = options.is_shared or not workers.mesh.is_first, workers.mesh.size > 1
    stack.enter_context(locked_directory(options.output, is_shared=is_shared, has_others=has_others))
    if settings.part is not None:
        return settings.part.claims
    if not options.is_shared or not workers.is_leader:
        return None
    return stack.enter_context(closing(Claims.in_directory(options.output)))


def _begin(batch: Batch, settings: RunSettings, dtype: str) -> dict[str, Any]:
    """Find the unfinished targets, and run their searches; return the work to be done, as a message to all processes.

    It has the `dtype` of the trunk (resumed targets keep theirs), the indices of the `remaining` targets with the
    numbers of their missing predictions, the sizes of `lots`, the names of finished targets that have `directories`,
    and the problem of each of the `servers` of the searches, or None.
    """
    jobs, options, output, workers = batch.jobs, settings.options, settings.options.output, settings.workers
    settings, statuses = _resumed(jobs, settings, dtype)
    remaining = [(index, status.missing) for index, status in enumerate(statuses) if not status.finished]
    to_fold = [jobs[index] for index, _ in remaining]
    lots = sizes_of_lots([None if job.is_complex else job.residues for job in to_fold], settings)
    finished = [output / status.name for status in statuses if status.finished and (output / status.name).is_dir()]
    if batch.pulldown:
        write_entries(output, batch.pulldown)
    if options.output_format == "colabfold":
        write_run(output, *colabfold_run(jobs, settings))
    # In a shared directory, each target is unpacked, cleared and searched for when it is claimed.
    if not options.is_shared:
        remove_partial(output)
        # Without searches, targets are unpacked when they are folded, so that not all have directories at once.
        for job in to_fold if settings.searches.alignments else ():
            restore(output / job.name)
        shared_results = shared_directories(job.target for job in jobs if job.target is not None)
        remove_partial_files((*written_directories(output, [job.name for job in jobs]), *shared_results))
        if options.slim:
            for directory in finished:
                slim_down(directory)
        search_for_all([job.target for job in to_fold if job.target is not None], settings.searches, output)
    # A run that was killed after the last prediction may not have written its archive.
    if options.zip:
        archive_finished(finished)
    # Invalid targets are added as failed tasks.
    workers.queue.open([*(job.name for job in to_fold), *batch.invalid], lots)
    for index, problem in enumerate(batch.invalid.values(), start=len(to_fold)):
        workers.queue.report(index, problem)
    servers = [contact.problem for contact in contacts_of(settings.searches)]
    return {
        "dtype": settings.folding.dtype,
        "remaining": remaining,
        "lots": lots,
        "directories": [path.name for path in finished],
        "servers": servers,
    }


def _end(settings: RunSettings) -> int:
    """Write the files about all targets after all processes have ended, and return the exit code."""
    options, queue = settings.options, settings.workers.queue
    if options.is_shared:
        # A run that was killed after it had packed the last target leaves its directory, and nothing else to pack.
        remove_partial(options.output)
    failures = queue.failures()
    if options.failures_file is not None:
        write_failures(options.failures_file.parent, failures, options.failures_file.name)
    elif settings.part is None:
        if options.output_format == "colabfold":
            write_log(options.output, "Done")
        return close_batch(failures, len(queue), options.output)
    return exit_code_for(failures)


def _resumed(jobs: Sequence[Job], settings: RunSettings, dtype: str) -> tuple[RunSettings, list[ResumeStatus]]:
    """Return the settings with the dtype of the trunk, and the work to be done for each target; print notes.

    The dtype is `dtype`, unless the user chose one or this run resumes targets, which keep theirs.
    """
    options = settings.options
    with PackedResults(options.output) as packed:
        if settings.folding.dtype == AUTO and not options.overwrite:
            begun = begun_dtype(jobs, settings, packed)
            if begun not in (None, dtype):
                print_note(f"computing in {begun}, like earlier targets of this run")
            dtype = begun or dtype
        settings = settings.computing_in(dtype)
        _print_notes(jobs, settings)
        return settings, _statuses(jobs, settings, packed)


def _print_notes(jobs: Sequence[Job], settings: RunSettings) -> None:
    """Print a warning if the demonstration model folds by default, and all notes about models and targets."""
    is_demonstration = settings.models[0].provenance == "demonstration"
    # An adapter fits only the model that the user trained it on.
    is_chosen = folding_of(settings.options)[0] or settings.options.weights is not None or settings.options.adapter
    if is_demonstration and not is_chosen:
        print_warning(
            _NO_WEIGHTS_WARNING.format(targets=counted(len(jobs), "target")),
            is_json=settings.options.progress == "json",
        )
    if (warning := untested_warning(properties_of(settings.device))) is not None:
        print_note(warning)
    for note in dict.fromkeys(note for job in jobs for note in job.notes(settings.models)):
        print_note(note)


def _sorted(jobs: Sequence[Job], options: PredictOptions, *, several: bool) -> list[Job]:
    """Sort targets: short ones first for early results, or long ones first for several groups, to end together."""
    if options.sort_queries_by == "none":
        return list(jobs)
    if options.sort_queries_by == "random":
        return [jobs[index] for index in np.random.default_rng(options.seed).permutation(len(jobs))]
    return sorted(jobs, key=lambda job: job.residues, reverse=several)


def _statuses(jobs: Sequence[Job], settings: RunSettings, packed: PackedResults) -> list[ResumeStatus]:
    """Return the work to be done for each target, and print notes about earlier results."""
    options = settings.options
    for problem in packed.problems.values():
        tqdm.write(f"helixfold: {problem}; its targets count as not predicted", file=sys.stderr)
    statuses = [resume_status(job, options.output / job.name, settings, packed) for job in jobs]
    skipped_words = "would be skipped" if options.dry_run else "skipped"
    mismatched = [status for status in statuses if status.finished and status.remark is not None]
    if mismatched and not options.keep_existing:
        these = "it" if len(mismatched) == 1 else f"these {len(mismatched)} of {len(jobs)} targets"
        advice = (
            f"; pass --overwrite to fold {these} again, another --output, or (helixfold predict only) --keep-existing "
            f"to skip {these}"
        )
        with input_problems() as problems:
            for index, status in enumerate(mismatched):
                text = f"{status.remark}{'' if index else advice}"
                problems.add(InputError.at(options.output / status.name, text))
    count_without_remark = sum(status.finished and status.remark is None for status in statuses)
    if count_without_remark > _MAX_FINISHED_LINES:
        print_summary(
            f"{count_without_remark} targets: finished before, {skipped_words} (--overwrite folds them again)"
        )
    for status in statuses:
        if status.remark is not None and not status.finished:
            print_summary(f"{status.name}: {status.remark}")
        elif status.remark is not None or (status.finished and count_without_remark <= _MAX_FINISHED_LINES):
            remark = status.remark or "finished before"
            print_summary(f"{status.name}: {remark}, {skipped_words} (--overwrite folds it again)")
    return statuses
