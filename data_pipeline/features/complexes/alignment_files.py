"""Find the alignments of a complex's chains among the files that the options of a command name."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from data_pipeline.features.complexes.colabfold_a3m import is_complex_header, read_complex_a3m
from data_pipeline.features.complexes.complex_input import ChainAlignmentFiles, ComplexInput
from data_pipeline.features.complexes.result_directory import (
    ALIGNMENT_SUFFIXES,
    alignments_of_single_chain,
    chain_directories,
    read_directory,
)
from data_pipeline.features.complexes.target import ComplexTarget, Entity
from data_pipeline.io.errors import InputError
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.parse.alignment_rows import MAX_ALIGNMENT_BYTES
from data_pipeline.parse.fasta import file_names
from data_pipeline.parse.text_files import read_lines

A3M_SUFFIXES = (".a3m", ".a3m.gz")
NAMES_OF_CHAINS, NAMES = "<name>_<chain>.a3m", "<name>.a3m"  # of alignments, as errors show them
PAIRED = ".paired"  # before the suffix of a file of paired rows


def is_complex_a3m(path: Path) -> bool:
    """Return whether a file is ColabFold's alignment of several chains."""
    return is_complex_header(next(read_lines(path, MAX_ALIGNMENT_BYTES), b"").rstrip(b"\0 "))


def complex_of_a3m(path: Path, name: str, chain_ids: Sequence[str]) -> ComplexInput:
    """Return the complex of ColabFold's alignment of all its chains."""
    return ComplexInput(target=read_complex_a3m(path).target(name, chain_ids), a3m=path)


def require_directories(msa: Sequence[Path], example: str) -> None:
    """Raise `InputError` for an alignment that is not in a directory, and so for one of several targets."""
    for path in msa:
        if not os.path.isdir(path):
            raise InputError(
                f"{path}: one alignment for several targets; give --msa a directory with {example} for each"
            )


def with_alignments(given: ComplexInput, msa: Sequence[Path], *, only: bool) -> ComplexInput:
    """Return a complex with the alignments that --msa names, all of which are read to check them.

    A directory has them by chain, as <name>_<chain>.a3m or <name>/<chain>.a3m, with paired rows in files that end in
    .paired.a3m, or as AlphaFold's results of searches in <name>/msas/<chain> or <name>/<chain>, of the only target also
    in <chain>; or it has ColabFold's alignment of all chains, <name>.a3m. Files that are named themselves are for the
    only target, and their first rows say for which chains. Raise `InputError` for a file that cannot be used, and for
    chains without alignments.
    """
    if not only:
        require_directories(msa, NAMES_OF_CHAINS)
    for path in msa:
        if os.path.isdir(path):
            given = _with_directory(given, path, only=only)
        elif is_complex_a3m(path):
            given = _with_whole(given, path)
        else:
            given = _with_file(given, path)
    _check_paired_rows(given)
    return given


def _with_directory(given: ComplexInput, directory: Path, *, only: bool) -> ComplexInput:
    names = file_names(given.name)
    whole = next((path for name in names for path in _files(directory / name)), None)
    if whole is not None and is_complex_a3m(whole):
        return _with_whole(given, whole)
    for entity in given.target.entities:
        found = _named_files(directory, names, entity)
        if found is None:
            places = (
                each for chain in entity.chain_ids for each in chain_directories(directory, names, chain, only=only)
            )
            found = next(filter(None, map(read_directory, places)), None)
        if found is None and len(given.target.entities) == 1:
            files = alignments_of_single_chain(directory, names, only=only)
            found = ChainAlignmentFiles(unpaired=files) if files else None
        if found is None:
            chain, name = entity.chain_ids[0], names[-1]
            raise InputError(
                f"{directory}: there is no {name}_{chain}.a3m and no {name}/{chain}.a3m for chain {chain} of complex "
                f"'{given.name}' in this directory, and no {name}/msas/{chain} with AlphaFold's results"
            )
        for path in filter(None, (*found.unpaired, found.paired, found.uniprot)):
            read_alignment(path, entity.sequence)
        given = _with_files(given, entity, found)
    return given


def _named_files(directory: Path, names: Sequence[str], entity: Entity) -> ChainAlignmentFiles | None:
    """Return the alignments of one of the sequences in files that are named after it; None if there is none."""
    stems = [*_stems(directory, names, entity)]
    unpaired = next((files for stem in stems if (files := _files(stem))), [])
    paired = next((files for stem in stems if (files := _files(stem.with_name(stem.name + PAIRED)))), [])
    if not unpaired and not paired:
        return None
    return ChainAlignmentFiles(unpaired=tuple(unpaired), paired=paired[0] if paired else None)


def _stems(directory: Path, names: Sequence[str], entity: Entity) -> Iterator[Path]:
    """Yield the paths, without suffixes, at which alignments of one of the sequences can be."""
    for chain in entity.chain_ids:
        for name in names:
            yield directory / f"{name}_{chain}"
            yield directory / name / chain


def _files(stem: Path) -> list[Path]:
    paths = (stem.with_name(f"{stem.name}{suffix}") for suffix in ALIGNMENT_SUFFIXES)
    return [path for path in paths if path.is_file()]


def _with_whole(given: ComplexInput, path: Path) -> ComplexInput:
    """Return the complex with ColabFold's alignment; raise `InputError` if that is of other chains."""
    found = read_complex_a3m(path)
    target = ComplexTarget.of(given.name, found.target(given.name).sequences)
    if sorted(target.sequences) != sorted(given.target.sequences):
        raise InputError.at(path, f"this is the alignment of other chains than those of complex '{given.name}'", line=1)
    return replace(given, a3m=path)


def _with_file(given: ComplexInput, path: Path) -> ComplexInput:
    """Return the complex with an alignment of the chains whose sequence is its first row."""
    query = read_alignment(path).query
    entity = next((each for each in given.target.entities if each.sequence == query), None)
    if entity is None:
        raise InputError.at(
            path, f"its first row is none of the chains of complex '{given.name}'; give the alignment of a chain"
        )
    is_paired = path.name.lower().endswith(tuple(f"{PAIRED}{suffix}" for suffix in ALIGNMENT_SUFFIXES))
    own = ChainAlignmentFiles(paired=path) if is_paired else ChainAlignmentFiles(unpaired=(path,))
    return _with_files(given, entity, own)


def _with_files(given: ComplexInput, entity: Entity, more: ChainAlignmentFiles) -> ComplexInput:
    entities = given.target.entities
    files = list(given.files or [ChainAlignmentFiles()] * len(entities))
    place = entities.index(entity)
    own = files[place]
    files[place] = ChainAlignmentFiles(
        unpaired=(*own.unpaired, *more.unpaired),
        paired=more.paired or own.paired,
        uniprot=more.uniprot or own.uniprot,
    )
    return replace(given, files=tuple(files))


def _check_paired_rows(given: ComplexInput) -> None:
    """Raise `InputError` if not every sequence has paired rows, as many as the others, though one has."""
    paired = [(entity, given.files_of(entity).paired) for entity in given.target.entities]
    rows = {path: len(read_alignment(path, entity.sequence).names) for entity, path in paired if path is not None}
    if not rows:
        return
    first = next(iter(rows))
    missing = next((entity.chain_ids[0] for entity, path in paired if path is None), None)
    if missing is not None:
        raise InputError.at(
            first, f"paired rows are given for this chain and not for chain {missing}; give them for all chains"
        )
    for path, count in rows.items():
        if count != rows[first]:
            raise InputError.at(
                path,
                f"{count:,} paired rows, and {first} has {rows[first]:,}; rows belong together by their numbers, so "
                "give as many",
            )
