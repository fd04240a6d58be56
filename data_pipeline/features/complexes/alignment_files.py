"""Find the alignments of the chains of a complex among the files and directories of --msa.

`FILE_OF_CHAIN` and `FILE_OF_TARGET` are patterns of file names for error messages. `PAIRED` is the ending, before the
suffix, of the names of files with paired rows.
"""

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
FILE_OF_CHAIN, FILE_OF_TARGET = "<name>_<chain>.a3m", "<name>.a3m"
PAIRED = ".paired"  # before the suffix of files with paired rows


def is_complex_a3m(path: Path) -> bool:
    """Return whether the first line of a plain or gzip file is ColabFold's header for several chains."""
    return is_complex_header(next(read_lines(path, MAX_ALIGNMENT_BYTES), b"").rstrip(b"\0 "))


def complex_of_a3m(path: Path, name: str, chain_ids: Sequence[str]) -> ComplexInput:
    """Return the complex in ColabFold's alignment of all its chains, which gets `name` and `chain_ids`.

    Without IDs, the chains are named A, B and so on.
    """
    return ComplexInput(target=read_complex_a3m(path).target(name, chain_ids), a3m=path)


def require_directories(msa: Sequence[Path], example: str) -> None:
    """Raise `InputError` unless all paths of --msa are directories, which several targets need.

    `example` is a file name in such a directory, for the message.
    """
    for path in msa:
        if not os.path.isdir(path):
            raise InputError(
                f"{path}: one alignment for several targets; pass --msa a directory with {example} for each"
            )


def with_alignments(complex_input: ComplexInput, msa: Sequence[Path], *, only: bool) -> ComplexInput:
    """Return a complex with the alignments in the files and directories `msa`, which are read to check them.

    `only` is whether the complex is the only target; with other targets, `msa` must only have directories.

    A directory has the alignments by chain, as <name>_<chain>.a3m or <name>/<chain>.a3m, with paired rows in files that
    end in .paired.a3m; or AlphaFold's search results in <name>/msas/<chain> or <name>/<chain>, and for a single target
    also in <chain>; or ColabFold's alignment of all chains, <name>.a3m. Paths of files are for a single target, and
    belong to the chains in their first rows. Raise `InputError` for a file that cannot be used, and for chains without
    alignments.
    """
    if not only:
        require_directories(msa, FILE_OF_CHAIN)
    for path in msa:
        if os.path.isdir(path):
            complex_input = _with_directory(complex_input, path, only=only)
        elif is_complex_a3m(path):
            complex_input = _with_whole(complex_input, path)
        else:
            complex_input = _with_file(complex_input, path)
    _check_paired_rows(complex_input)
    return complex_input


def _with_directory(complex_input: ComplexInput, directory: Path, *, only: bool) -> ComplexInput:
    """Return the complex with its alignments in `directory`: a file of the whole complex, or files of each entity.

    Raise `InputError` if an entity has none. With `only`, the complex is the only target of the run, so that files may
    lie directly in `directory`.
    """
    names = file_names(complex_input.name)
    whole = next((path for name in names for path in _files(directory / name)), None)
    if whole is not None and is_complex_a3m(whole):
        return _with_whole(complex_input, whole)
    for entity in complex_input.target.entities:
        chain_files = _named_files(directory, names, entity)
        if chain_files is None:
            places = (
                each for chain in entity.chain_ids for each in chain_directories(directory, names, chain, only=only)
            )
            chain_files = next(filter(None, map(read_directory, places)), None)
        if chain_files is None and len(complex_input.target.entities) == 1:
            files = alignments_of_single_chain(directory, names, only=only)
            chain_files = ChainAlignmentFiles(unpaired=files) if files else None
        if chain_files is None:
            chain, name = entity.chain_ids[0], names[-1]
            raise InputError(
                f"{directory}: there is no {name}_{chain}.a3m and no {name}/{chain}.a3m for chain {chain} of complex "
                f"'{complex_input.name}' in this directory, and no {name}/msas/{chain} with AlphaFold's results"
            )
        for path in filter(None, (*chain_files.unpaired, chain_files.paired, chain_files.uniprot)):
            read_alignment(path, entity.sequence)
        complex_input = _with_files(complex_input, entity, chain_files)
    return complex_input


def _named_files(directory: Path, names: Sequence[str], entity: Entity) -> ChainAlignmentFiles | None:
    """Return the alignments of a sequence in files with its chain names, or None if there are none."""
    stems = [*_stems(directory, names, entity)]
    unpaired = next((files for stem in stems if (files := _files(stem))), [])
    paired = next((files for stem in stems if (files := _files(stem.with_name(stem.name + PAIRED)))), [])
    if not unpaired and not paired:
        return None
    return ChainAlignmentFiles(unpaired=tuple(unpaired), paired=paired[0] if paired else None)


def _stems(directory: Path, names: Sequence[str], entity: Entity) -> Iterator[Path]:
    """Yield the possible paths of alignments of a sequence, without suffixes."""
    for chain in entity.chain_ids:
        for name in names:
            yield directory / f"{name}_{chain}"
            yield directory / name / chain


def _files(stem: Path) -> list[Path]:
    """Return the existing files whose path is `stem` with one of the endings of alignments."""
    paths = (stem.with_name(f"{stem.name}{suffix}") for suffix in ALIGNMENT_SUFFIXES)
    return [path for path in paths if path.is_file()]


def _with_whole(complex_input: ComplexInput, path: Path) -> ComplexInput:
    """Return the complex with ColabFold's alignment; raise `InputError` if the alignment is of other chains."""
    alignment = read_complex_a3m(path)
    target = ComplexTarget.of(complex_input.name, alignment.target(complex_input.name).sequences)
    if sorted(target.sequences) != sorted(complex_input.target.sequences):
        raise InputError.at(path, f"the alignment is not for the chains of complex '{complex_input.name}'", line=1)
    return replace(complex_input, a3m=path)


def _with_file(complex_input: ComplexInput, path: Path) -> ComplexInput:
    """Return the complex with an alignment for the chains whose sequence is its first row."""
    query = read_alignment(path).query
    entity = next((each for each in complex_input.target.entities if each.sequence == query), None)
    if entity is None:
        raise InputError.at(
            path, f"its first row is not a chain of complex '{complex_input.name}'; pass the alignment of a chain"
        )
    is_paired = path.name.lower().endswith(tuple(f"{PAIRED}{suffix}" for suffix in ALIGNMENT_SUFFIXES))
    own = ChainAlignmentFiles(paired=path) if is_paired else ChainAlignmentFiles(unpaired=(path,))
    return _with_files(complex_input, entity, own)


def _with_files(complex_input: ComplexInput, entity: Entity, more: ChainAlignmentFiles) -> ComplexInput:
    """Return the complex with `more` files of an entity.

    Unpaired files are added to its own ones; paired and UniProt files replace its own ones.
    """
    entities = complex_input.target.entities
    files = list(complex_input.files or [ChainAlignmentFiles()] * len(entities))
    place = entities.index(entity)
    own = files[place]
    files[place] = ChainAlignmentFiles(
        unpaired=(*own.unpaired, *more.unpaired),
        paired=more.paired or own.paired,
        uniprot=more.uniprot or own.uniprot,
    )
    return replace(complex_input, files=tuple(files))


def _check_paired_rows(complex_input: ComplexInput) -> None:
    """Raise `InputError` unless all sequences or none have paired rows, in equal numbers."""
    paired = [(entity, complex_input.files_of(entity).paired) for entity in complex_input.target.entities]
    rows = {path: len(read_alignment(path, entity.sequence).names) for entity, path in paired if path is not None}
    if not rows:
        return
    first = next(iter(rows))
    missing = next((entity.chain_ids[0] for entity, path in paired if path is None), None)
    if missing is not None:
        raise InputError.at(
            first, f"this chain has paired rows, but chain {missing} has none; pass them for all chains"
        )
    for path, count in rows.items():
        if count != rows[first]:
            raise InputError.at(
                path,
                f"{count:,} paired rows, but {first} has {rows[first]:,}; pass the same number of rows for all chains",
            )
