"""Run `helixfold predict` in this process, together with the other processes of its worker group."""

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from data_pipeline.complexes.complex_input import AnyTarget
from data_pipeline.errors import InputError, printable
from data_pipeline.parse.fasta import directory_name
from data_pipeline.parse.structures import read_structure
from data_pipeline.search.plan import SearchPlan
from helixfold.execution import allocator
from helixfold.execution.device import limit_threads
from helixfold.folding import FoldingOptions
from helixfold.initial_guess import guess_of
from helixfold.options import given, part_of
from helixfold.parallel.worker_group import OtherRankError, join_workers
from helixfold.predict.batch import predict
from helixfold.predict.jobs import Job
from helixfold.predict.options import EXAMPLE, EXAMPLE_TEMPLATE, PredictOptions
from helixfold.predict.presets import PREDICTION_PRESETS
from helixfold.predict.pulldown import pulldown_targets
from helixfold.predict.screen import logged_screen
from helixfold.predict.search import (
    FEATURES_FILE,
    directory_in,
    pulldown_of_features,
    read_features,
    unfinished_features,
)
from helixfold.predict.search_plan import plan_of, print_complex_notes, selected_alignments
from helixfold.predict.targets import INPUT_SUFFIXES, check_names, is_sequence, read_targets, with_search_files
from helixfold.report.page import counted
from helixfold.report.pulldown import PulldownEntry
from helixfold.standard_streams import optional_output


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
