"""Read the targets of a command from its input files, with their alignments and templates.

The complexes of a pulldown (baits with preys) share the searches for their chains.
"""

import hashlib
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from data_pipeline.features.assembly import MAX_TEMPLATES
from data_pipeline.features.complexes.alignment_files import FILE_OF_TARGET, require_directories
from data_pipeline.features.complexes.complex_input import AnyTarget, ChainAlignmentFiles, ComplexInput
from data_pipeline.features.complexes.pulldown import PulldownComplex, read_pulldown
from data_pipeline.features.complexes.target_files import (
    INPUT_SUFFIXES,
    alignments_of,
    directory_in,
    is_sequence,
    read_targets,
    with_search_files,
)
from data_pipeline.io.errors import InputError, InputProblems, input_problems
from data_pipeline.parse.fasta import directory_name, filesystem_key
from data_pipeline.pipeline import Target
from data_pipeline.templates.from_files import UserTemplateOptions, templates_of_chains
from helixfold.apps.options import EXAMPLE, EXAMPLE_TEMPLATE, PredictOptions
from helixfold.apps.search_plan import print_complex_notes, selected_alignments
from helixfold.report.page import counted
from helixfold.report.pulldown import PulldownEntry
from helixfold.results.failures import failures_of_input
from helixfold.results.file_table import CHAIN_SEARCHES
from helixfold.runtime.options import changed_options

_MAX_NAME_CHARACTERS = 60  # characters of a protein's name in the name of a directory of searches


def skippable_problems(skip_invalid: bool) -> InputProblems | None:
    """Return a collection for the errors of single targets with --skip-invalid; None means that errors are raised."""
    return InputProblems() if skip_invalid else None


def advise_skipping(problems: InputProblems, valid: Collection[object], inputs: Sequence[Path]) -> None:
    """Let the error of a batch end with a hint at --skip-invalid, if other targets are valid.

    An output directory among `inputs` is not a target that may be left out.
    """
    if valid and _output_among(inputs) is None:
        problems.advice = "; or pass --skip-invalid to leave invalid targets out"


def failures_of_skipped(problems: InputProblems, names: Collection[str], *, announce: bool) -> dict[str, str]:
    """Return the errors of skipped targets in the form of failures.json: reasons by name.

    `names` are the names of the valid targets' directories. With `announce`, the errors are printed. If no target is
    valid, all errors are raised together.
    """
    if not names:
        problems.raise_all()
    if problems and announce:
        for line in problems.lines:
            print(f"helixfold: {line}", file=sys.stderr)
        print(f"helixfold: {counted(len(problems), 'invalid input')} skipped (--skip-invalid)", file=sys.stderr)
    return failures_of_input(problems, names)


def requested_targets(
    options: PredictOptions,
    given_targets: Sequence[AnyTarget] | None = None,
    *,
    announce: bool,
    problems: InputProblems | None = None,
) -> tuple[list[AnyTarget], list[PulldownEntry]]:
    """Return the targets with their alignments and templates, and the entries of a pulldown's table.

    The targets are `given_targets`, or come from the input files of the options. With `announce`, notes are printed;
    only one of several processes should do so. Raise `InputError` for wrong input; with `problems`, the errors of
    single targets are added to them instead.
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
        targets = _with_cross_chain_templates(targets, options.cross_chain_templates, collection)
    if announce:
        print_complex_notes(options, targets)
    return targets, pulldown


def _with_cross_chain_templates(
    targets: Sequence[AnyTarget], paths: Sequence[Path], problems: InputProblems
) -> list[AnyTarget]:
    """Return the targets with templates across chains; errors of single targets are added to `problems`."""
    if len(paths) > MAX_TEMPLATES:
        raise InputError(f"--cross-chain-templates takes at most {MAX_TEMPLATES} files, got {len(paths)}")
    targets_with_templates = list[AnyTarget]()
    for target in targets if paths else ():
        with problems.collected(target.name):
            if not isinstance(target, ComplexInput):
                raise InputError(f"'{target.name}' is a single chain, but --cross-chain-templates is for complexes")
            chains = dict(zip(target.target.chain_ids, target.target.sequences, strict=True))
            for path in paths:  # before anything is searched
                templates_of_chains(chains, path, UserTemplateOptions())
            targets_with_templates.append(replace(target, cross_chain_templates=tuple(paths)))
    return targets_with_templates if paths else list(targets)


def _inputs(options: PredictOptions, problems: InputProblems) -> tuple[Path, ...]:
    """Return the input files, or the example with --example. Raise `InputError` for both together.

    If the last file does not exist, an error is added to `problems`: the user may have meant an output directory.
    """
    inputs = options.inputs
    if options.example:
        if inputs or options.features:
            raise InputError("--example cannot be combined with input files; leave out one of them")
        return (EXAMPLE,)
    if (output := _output_among(inputs)) is not None:
        problems.add(InputError.at(output, f"no such file; to write results there, pass --output {output}"))
        return inputs[:-1]
    return inputs


def _output_among(inputs: Sequence[Path]) -> Path | None:
    """Return the last of several inputs if it may be meant as the output directory, as in ColabFold's command."""
    last = inputs[-1] if len(inputs) > 1 else None
    if last and not (os.path.exists(last) or last.name.lower().endswith(INPUT_SUFFIXES) or is_sequence(last)):
        return last
    return None


def pulldown_targets(options: PredictOptions, problems: InputProblems) -> tuple[list[AnyTarget], list[PulldownEntry]]:
    """Return the complexes of --pulldown, and the entries of the table in which they are ranked.

    Errors of single proteins and complexes are added to `problems`. Raise `InputError` for files that cannot be used,
    and for options that cannot be combined with --pulldown.
    """
    if options.pulldown is None:
        if options.pulldown_table is not None:
            raise InputError("--pulldown-table needs the two FASTA files of baits and preys; pass --pulldown")
        return [], []
    for name in ("--features", "--example", "--records-as-chains", "--chain-ids"):
        if name in changed_options(options):
            raise InputError(f"--pulldown and {name} cannot be combined; run the command once for each")
    if options.inputs:
        raise InputError(f"--pulldown cannot be combined with {options.inputs[0]}; run the command once for each")
    complexes = []
    for each in read_pulldown(*options.pulldown, options.pulldown_table, problems):
        with problems.collected(each.name):
            if CHAIN_SEARCHES.match(f"{filesystem_key(each.name)}/"):
                raise InputError(f"the name '{each.name}' is used for results of searches; rename the complex")
            complexes.append(each)
    inputs = _in_complexes(complexes, options, problems)
    names = {each.name for each in inputs}
    entries = [_entry(each, options.output) for each in complexes if each.name in names]
    return [*inputs], entries


def _in_complexes(
    complexes: Sequence[PulldownComplex], options: PredictOptions, problems: InputProblems
) -> list[ComplexInput]:
    """Return the complexes with the alignments of their proteins, templates, and shared directories for searches."""
    names: dict[str, str] = {}
    for each in complexes:
        for protein, sequence in zip(each.proteins, each.target.sequences, strict=True):
            names.setdefault(sequence, protein)
    files: dict[str, tuple[Path, ...]] = {}
    require_directories(options.msa, FILE_OF_TARGET)
    for sequence, name in names.items():
        with problems.collected(name):
            files[sequence] = tuple(alignments_of(Target(name=name, sequence=sequence), options.msa, only=False))
    searches = CHAIN_SEARCHES.path(options.output)
    inputs = [
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
    with_templates = with_search_files(inputs, (), options.templates or (), problems)
    return [each for each in with_templates if isinstance(each, ComplexInput)]


def _directory(name: str, sequence: str) -> str:
    """Return the name of the directory with the searches for a sequence, which is the same in every run."""
    return f"{directory_name(name)[:_MAX_NAME_CHARACTERS]}_{hashlib.sha256(sequence.encode()).hexdigest()[:8]}"


def _entry(each: PulldownComplex, output: Path) -> PulldownEntry:
    """Return the entry of a complex in the pulldown's table."""
    return PulldownEntry(
        name=directory_in(output, each.name).name,
        baits=each.proteins[: each.baits],
        preys=each.proteins[each.baits :],
        bait_chains=each.target.chain_ids[: each.baits],
    )
