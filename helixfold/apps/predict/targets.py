"""Read what a run folds: targets from the files of its options, each with its alignments and templates, or features.

The complexes of a pulldown, of baits and preys, share the searches for their chains.
"""

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from data_pipeline.complexes.complex_input import AnyTarget, ChainAlignmentFiles, ComplexInput
from data_pipeline.complexes.pulldown import PulldownComplex, read_pulldown
from data_pipeline.complexes.target_files import (
    INPUT_SUFFIXES,
    alignments_of,
    check_names,
    directory_in,
    is_sequence,
    read_targets,
    with_search_files,
)
from data_pipeline.errors import InputError, printable
from data_pipeline.parse.fasta import directory_name, filesystem_key
from data_pipeline.parse.structures import read_structure
from data_pipeline.pipeline import Target
from data_pipeline.search.plan import SearchPlan
from helixfold.apps.predict.jobs import Job
from helixfold.apps.predict.options import EXAMPLE, EXAMPLE_TEMPLATE, PredictOptions, SearchOptions
from helixfold.apps.predict.search import (
    pulldown_of_features,
    read_features,
    unfinished_features,
)
from helixfold.apps.predict.search_plan import plan_of, print_complex_notes, selected_alignments, with_site_sources
from helixfold.folding.initial_guess import guess_of
from helixfold.options import given, part_of
from helixfold.report.page import counted
from helixfold.report.pulldown import PulldownEntry
from helixfold.results.file_table import CHAIN_SEARCHES, FEATURES

_LONGEST_NAME = 60  # letters of a protein's name in the name of a directory of searches


def read_jobs(
    options: PredictOptions, given_targets: Sequence[AnyTarget] | None = None, *, announce: bool
) -> tuple[list[Job], SearchPlan, list[PulldownEntry]]:
    """Return what a run with these options folds, the searches for it and, of a pulldown, the entries of its table.

    See `requested_targets`. Raise `InputError` for wrong input.
    """
    if options.features and not options.inputs and (names := given(options, SearchOptions)) and names != ["--threads"]:
        raise InputError(f"{names[0]} would do nothing: features are ready; give it the sequences")
    targets, pulldown = requested_targets(options, given_targets, announce=announce)
    # Whoever gives targets has decided what is searched.
    search = with_site_sources(options, targets, announce=announce) if given_targets is None else options
    searches = plan_of(search, announce=announce, dry_run=options.dry_run)
    ready = read_features(options.features)
    if announce and (unfinished := unfinished_features(options.features)):
        text = f"left out, as they have no {FEATURES.name()}: {', '.join(map(str, unfinished))}"
        print(f"helixfold: {printable(text, 1000)}; helixfold features makes the rest", file=sys.stderr)
    pulldown += pulldown_of_features(options.features, {directory_name(each.domain_name) for _, each in ready})
    jobs = [*(Job(target=target) for target in targets), *(Job(features=features) for _, features in ready)]
    jobs = [replace(job, directory=directory_in(options.output, job.title).name) for job in jobs]
    if not jobs:
        raise InputError("there is nothing to fold; name a FASTA file, an alignment, or --features")
    _check_references(options.reference)
    if (guess := options.initial_guess) is not None:
        jobs = [replace(job, initial_guess=guess_of(guess, job.title, only=len(jobs) == 1)) for job in jobs]
    for name in options.cyclic or ():
        if not any(name in job.chain_ids for job in jobs):
            raise InputError(f"--cyclic {printable(name)}: no target has a chain of this name")
    taken = {target.name: Path("the targets") for target in targets}
    check_names([*taken.items(), *((features.domain_name, path) for path, features in ready)])
    if (shard := options.shard) is not None:
        count, jobs = len(jobs), part_of(jobs, shard)
        if not jobs:
            raise InputError(f"there is no target in shard {shard[0]}/{shard[1]} of {counted(count, 'target')}")
    return jobs, searches, pulldown


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
    example = (EXAMPLE_TEMPLATE,) if options.example and options.templates is None else ()
    own_files = options.msa, options.templates or example
    targets: list[AnyTarget]
    complexes, pulldown = pulldown_targets(options)
    if complexes:
        targets = complexes
    elif given_targets is None:
        targets = read_targets(
            inputs,
            *own_files,
            as_protein=options.as_protein,
            records_as_chains=options.records_as_chains,
            chain_ids=options.chain_ids,
            pair_mode=options.pair_mode,
        )
    else:
        targets = with_search_files(given_targets, *own_files)
    targets = selected_alignments(targets, options, announce=announce)
    if announce:
        print_complex_notes(options, targets)
    return targets, pulldown


def _inputs(options: PredictOptions) -> tuple[Path, ...]:
    """Return the input files, or the example with --example. Raise `InputError` if they do not go together."""
    inputs = options.inputs
    if options.example:
        if inputs or options.features:
            raise InputError(
                "--example predicts the protein that comes with helixfold; leave out your own files, or --example"
            )
        return (EXAMPLE,)
    last = inputs[-1] if len(inputs) > 1 else None
    if last and not (os.path.exists(last) or last.name.lower().endswith(INPUT_SUFFIXES) or is_sequence(last)):
        # ColabFold takes the output directory last, and it need not exist.
        raise InputError.at(last, f"there is no such file; to write results there, give --output {last}")
    return inputs


def pulldown_targets(options: PredictOptions) -> tuple[list[AnyTarget], list[PulldownEntry]]:
    """Return the complexes of --pulldown, and the entries of the table in which they are ranked.

    Raise `InputError` for files that cannot be used, and for options that do not go with --pulldown.
    """
    if options.pulldown is None:
        if options.pulldown_table is not None:
            raise InputError("--pulldown-table names baits and preys of two FASTA files; give them as --pulldown")
        return [], []
    for name in ("--features", "--example", "--records-as-chains", "--chain-ids"):
        if name in given(options):
            raise InputError(f"--pulldown and {name} exclude each other; run the command once for each")
    if options.inputs:
        raise InputError(f"--pulldown has its own files; give {options.inputs[0]} to a command of its own")
    complexes = read_pulldown(*options.pulldown, options.pulldown_table)
    for each in complexes:
        if CHAIN_SEARCHES.match(f"{filesystem_key(each.name)}/"):
            raise InputError(f"a complex named '{each.name}' would be where results of searches are; rename it")
    inputs = _in_complexes(complexes, options)
    entries = [_entry(each, options.output) for each in complexes]
    return [*inputs], entries


def _in_complexes(complexes: Sequence[PulldownComplex], options: PredictOptions) -> list[ComplexInput]:
    """Return the complexes with their alignments, by protein, with templates, and with shared directories."""
    names: dict[str, str] = {}
    for each in complexes:
        for protein, sequence in zip(each.proteins, each.target.sequences, strict=True):
            names.setdefault(sequence, protein)
    proteins = [Target(name=name, sequence=sequence) for sequence, name in names.items()]
    files = {each.sequence: tuple(alignments_of(each, options.msa, only=False)) for each in proteins}
    searches = CHAIN_SEARCHES.path(options.output)
    found = [
        ComplexInput(
            target=each.target,
            files=tuple(ChainAlignmentFiles(unpaired=files[entity.sequence]) for entity in each.target.entities),
            pair_mode=options.pair_mode,
            as_protein=options.as_protein,
            shared_results=tuple(
                searches / _directory(names[entity.sequence], entity.sequence) for entity in each.target.entities
            ),
        )
        for each in complexes
    ]
    with_templates = with_search_files(found, (), options.templates or ())
    return [each for each in with_templates if isinstance(each, ComplexInput)]


def _directory(name: str, sequence: str) -> str:
    """Return the name of a directory for a sequence, which is the same in every run."""
    return f"{directory_name(name)[:_LONGEST_NAME]}_{hashlib.sha256(sequence.encode()).hexdigest()[:8]}"


def _entry(each: PulldownComplex, output: Path) -> PulldownEntry:
    return PulldownEntry(
        name=directory_in(output, each.name).name,
        baits=each.proteins[: each.baits],
        preys=each.proteins[each.baits :],
        bait_chains=each.target.chain_ids[: each.baits],
    )
