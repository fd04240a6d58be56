"""Make the targets of a pulldown: complexes of baits and preys that share the searches for their chains."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from data_pipeline.complexes.complex_input import AnyTarget, ChainAlignmentFiles, ComplexInput
from data_pipeline.complexes.pulldown import PulldownComplex, read_pulldown
from data_pipeline.errors import InputError
from data_pipeline.parse.fasta import directory_name, filesystem_key
from data_pipeline.pipeline import Target
from helixfold.options import given
from helixfold.predict.options import PredictOptions
from helixfold.predict.search import SEARCHES_DIRECTORY, directory_in
from helixfold.predict.targets import alignments_of, with_search_files
from helixfold.report.pulldown import PulldownEntry

_LONGEST_NAME = 60  # letters of a protein's name in the name of such a directory


def pulldown_targets(options: PredictOptions) -> tuple[list[AnyTarget], list[PulldownEntry]]:
    """Return the complexes of --pulldown, and the entries of the table in which they are ranked.

    Raise `InputError` for files that cannot be used, and for options that do not go with --pulldown.
    """
    targets = options.targets
    if targets.pulldown is None:
        if targets.pulldown_table is not None:
            raise InputError("--pulldown-table names baits and preys of two FASTA files; give them as --pulldown")
        return [], []
    for name in ("--features", "--example", "--records-as-chains", "--chain-ids"):
        if name in (*given(targets), *given(options.complexes)):
            raise InputError(f"--pulldown and {name} exclude each other; run the command once for each")
    if options.inputs:
        raise InputError(f"--pulldown has its own files; give {options.inputs[0]} to a command of its own")
    complexes = read_pulldown(*targets.pulldown, targets.pulldown_table)
    for each in complexes:
        if filesystem_key(each.name) == SEARCHES_DIRECTORY:
            raise InputError(f"a complex named '{each.name}' would be where results of searches are; rename it")
    inputs = _with_files(complexes, options)
    entries = [_entry(each, options.targets.output) for each in complexes]
    return [*inputs], entries


def _with_files(complexes: Sequence[PulldownComplex], options: PredictOptions) -> list[ComplexInput]:
    """Return the complexes with their alignments, by protein, with templates, and with shared directories."""
    names: dict[str, str] = {}
    for each in complexes:
        for protein, sequence in zip(each.proteins, each.target.sequences, strict=True):
            names.setdefault(sequence, protein)
    proteins = [Target(name=name, sequence=sequence) for sequence, name in names.items()]
    files = {each.sequence: tuple(alignments_of(each, options.search.msa, only=False)) for each in proteins}
    searches = options.targets.output / SEARCHES_DIRECTORY
    found = [
        ComplexInput(
            target=each.target,
            files=tuple(ChainAlignmentFiles(unpaired=files[entity.sequence]) for entity in each.target.entities),
            pair_mode=options.complexes.pair_mode,
            as_protein=options.targets.as_protein,
            shared_results=tuple(
                searches / _directory(names[entity.sequence], entity.sequence) for entity in each.target.entities
            ),
        )
        for each in complexes
    ]
    with_templates = with_search_files(found, (), options.search.templates or ())
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
