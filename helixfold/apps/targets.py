"""Read what a run folds: targets from the files of its options, each with its alignments and templates, or features.

The complexes of a pulldown, of baits and preys, share the searches for their chains.
"""

import hashlib
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_pipeline.features.complexes.alignment_files import NAMES, require_directories
from data_pipeline.features.complexes.complex_input import AnyTarget, ChainAlignmentFiles, ComplexInput
from data_pipeline.features.complexes.pulldown import PulldownComplex, read_pulldown
from data_pipeline.features.complexes.target_files import (
    INPUT_SUFFIXES,
    TargetNames,
    alignments_of,
    directory_in,
    is_sequence,
    read_targets,
    with_search_files,
)
from data_pipeline.io.errors import InputError, InputProblems, did_you_mean, input_problems, printable
from data_pipeline.parse.fasta import directory_name, filesystem_key
from data_pipeline.parse.structures import read_structure
from data_pipeline.pipeline import Target
from data_pipeline.search.plan import SearchPlan
from helixfold.apps.options import EXAMPLE, EXAMPLE_TEMPLATE, PredictOptions, SearchOptions
from helixfold.apps.predict.jobs import Job
from helixfold.apps.search import (
    pulldown_of_features,
    read_features,
    unfinished_features,
)
from helixfold.apps.search_plan import plan_of, print_complex_notes, selected_alignments, with_site_sources
from helixfold.folding.initial_guess import guess_of
from helixfold.report.page import counted
from helixfold.report.pulldown import PulldownEntry
from helixfold.results.failures import failures_of_input
from helixfold.results.file_table import CHAIN_SEARCHES, FEATURES
from helixfold.runtime.options import given, part_of
from helixfold.runtime.standard_streams import print_note

_LONGEST_NAME = 60  # letters of a protein's name in the name of a directory of searches


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a run folds, and the searches for it."""

    jobs: Sequence[Job]
    searches: SearchPlan
    pulldown: Sequence[PulldownEntry]  # the entries of its table
    invalid: Mapping[str, str]  # what is wrong with targets that are left out, as failures.json has it


def read_jobs(options: PredictOptions, given_targets: Sequence[AnyTarget] | None = None, *, announce: bool) -> Batch:
    """Return what a run with these options folds; see `requested_targets`.

    Raise `InputError` for wrong input: all errors together or, with --skip-invalid, none of those that concern single
    targets, unless no target is valid.
    """
    if options.features and not options.inputs and (names := given(options, SearchOptions)) and names != ["--threads"]:
        raise InputError(f"{names[0]} would do nothing: features are ready; give it the sequences")
    plan_of(with_site_sources(options, announce=False), announce=False)  # wrong options are reported before wrong files
    with input_problems(skippable_problems(options.skip_invalid)) as problems:
        targets, pulldown = requested_targets(options, given_targets, announce=announce, problems=problems)
        ready = read_features(options.features, problems)
        jobs = [*(Job(target=target) for target in targets), *(Job(features=features) for _, features in ready)]
        if not jobs and not problems:
            raise InputError("there is nothing to fold; name a FASTA file, an alignment, or --features")
        _check_references(options.reference)
        files = [Path("the targets")] * len(targets) + [path for path, _ in ready]
        jobs = _checked(jobs, files, options, problems)
        chains = {chain for job in jobs for chain in job.chain_ids}
        for name in options.cyclic or ():
            if name not in chains and not problems:  # a target that is left out may have it
                hint = did_you_mean(name, sorted(chains))
                raise InputError(f"--cyclic {printable(name)}: no target has a chain of this name{hint}")
    # Whoever gives targets has decided what is searched.
    search = with_site_sources(options, targets, announce=announce) if given_targets is None else options
    searches = plan_of(search, announce=announce, dry_run=options.dry_run)
    if announce and (unfinished := unfinished_features(options.features)):
        text = f"left out, as they have no {FEATURES.name()}: {', '.join(map(str, unfinished))}"
        print_note(f"{printable(text, 1000)}; helixfold features makes the rest")
    jobs = [replace(job, directory=directory_in(options.output, job.title).name) for job in jobs]
    invalid = left_out_failures(problems, {job.name for job in jobs}, announce=announce)
    pulldown += pulldown_of_features(options.features, {directory_name(each.domain_name) for _, each in ready})
    if (shard := options.shard) is not None:
        count, jobs = len(jobs), part_of(jobs, shard)
        if not jobs:
            raise InputError(f"there is no target in shard {shard[0]}/{shard[1]} of {counted(count, 'target')}")
    return Batch(jobs=jobs, searches=searches, pulldown=pulldown, invalid=invalid)


def skippable_problems(skip_invalid: bool) -> InputProblems | None:
    """Return where to collect the errors of single targets that --skip-invalid leaves out; None: they are raised."""
    return InputProblems() if skip_invalid else None


def left_out_failures(problems: InputProblems, names: Collection[str], *, announce: bool) -> dict[str, str]:
    """Return why targets are left out, as failures.json has it; `names` are the directories of the valid targets.

    Print it from the process that should `announce` it. Raise all errors if no target is valid.
    """
    if not names:
        problems.raise_all()
    if problems and announce:
        for line in problems.lines:
            print(f"helixfold: {line}", file=sys.stderr)
        print(f"helixfold: {counted(len(problems), 'invalid input')} left out (--skip-invalid)", file=sys.stderr)
    return failures_of_input(problems, names)


def _checked(jobs: Sequence[Job], files: Sequence[Path], options: PredictOptions, problems: InputProblems) -> list[Job]:
    """Return the jobs that have a name of their own and, if there are any, an initial guess; `files` have the jobs."""
    names, found = TargetNames(), list[Job]()
    only = len(jobs) + len(problems) == 1
    for job, file in zip(jobs, files, strict=True):
        with problems.collected(job.title):
            names.add(job.title, file)
            guess = options.initial_guess
            found.append(job if guess is None else replace(job, initial_guess=guess_of(guess, job.title, only=only)))
    return found


def _check_references(paths: Sequence[Path]) -> None:
    """Read structures that samples will be compared to; raise `InputError` for what is wrong with one."""
    if not paths:
        return
    # Takes long to import.
    from helixfold.analysis.matching import structure_files  # noqa: PLC0415

    for file in (each for path in paths for each in structure_files(path)):
        read_structure(file.path)


def requested_targets(
    options: PredictOptions,
    given_targets: Sequence[AnyTarget] | None = None,
    *,
    announce: bool,
    problems: InputProblems | None = None,
) -> tuple[list[AnyTarget], list[PulldownEntry]]:
    """Return the targets of the options' files, or those given, with their alignments and templates, and the entries of
    a pulldown's table.

    Of several processes one should `announce` what is left out. Raise `InputError` for wrong input; the errors of
    single targets are added to `problems` instead, if they are given.
    """
    example = (EXAMPLE_TEMPLATE,) if options.example and options.templates is None else ()
    own_files = options.msa, options.templates or example
    targets: list[AnyTarget]
    with input_problems(problems) as collection:
        inputs = _inputs(options, collection)
        complexes, pulldown = pulldown_targets(options, collection)
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
                problems=collection,
            )
        else:
            targets = with_search_files(given_targets, *own_files, collection)
        targets = selected_alignments(targets, options, announce=announce)
    if announce:
        print_complex_notes(options, targets)
    return targets, pulldown


def _inputs(options: PredictOptions, problems: InputProblems) -> tuple[Path, ...]:
    """Return the input files, or the example with --example. Raise `InputError` if they do not go together.

    A last file that is not there is added to `problems`: it may be meant as the output directory.
    """
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
        problems.add(InputError.at(last, f"there is no such file; to write results there, give --output {last}"))
        return inputs[:-1]
    return inputs


def pulldown_targets(options: PredictOptions, problems: InputProblems) -> tuple[list[AnyTarget], list[PulldownEntry]]:
    """Return the complexes of --pulldown, and the entries of the table in which they are ranked.

    Errors of single proteins and complexes are added to `problems`. Raise `InputError` for files that cannot be used,
    and for options that do not go with --pulldown.
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
    complexes = []
    for each in read_pulldown(*options.pulldown, options.pulldown_table, problems):
        with problems.collected(each.name):
            if CHAIN_SEARCHES.match(f"{filesystem_key(each.name)}/"):
                raise InputError(f"a complex named '{each.name}' would be where results of searches are; rename it")
            complexes.append(each)
    inputs = _in_complexes(complexes, options, problems)
    names = {each.name for each in inputs}
    entries = [_entry(each, options.output) for each in complexes if each.name in names]
    return [*inputs], entries


def _in_complexes(
    complexes: Sequence[PulldownComplex], options: PredictOptions, problems: InputProblems
) -> list[ComplexInput]:
    """Return the complexes with their alignments, by protein, with templates, and with shared directories."""
    names: dict[str, str] = {}
    for each in complexes:
        for protein, sequence in zip(each.proteins, each.target.sequences, strict=True):
            names.setdefault(sequence, protein)
    files: dict[str, tuple[Path, ...]] = {}
    require_directories(options.msa, NAMES)
    for sequence, name in names.items():
        with problems.collected(name):
            files[sequence] = tuple(alignments_of(Target(name=name, sequence=sequence), options.msa, only=False))
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
        if files.keys() >= set(each.target.sequences)
    ]
    with_templates = with_search_files(found, (), options.templates or (), problems)
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
