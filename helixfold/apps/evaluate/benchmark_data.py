"""Find the data of a benchmark's targets: sequences, references (known structures), alignments and templates."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.features.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.features.complexes.result_directory import ALIGNMENT_SUFFIXES
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.features.complexes.target_files import FASTA_SUFFIXES
from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.parse.fasta import directory_name, read_fasta
from data_pipeline.parse.structures import read_structure
from data_pipeline.pipeline import Target
from helixfold.analysis.matching import StructureFile, by_name, structure_files
from helixfold.apps.evaluate.benchmark_table import BenchmarkRow, BenchmarkTable


@dataclass(frozen=True, kw_only=True)
class BenchmarkTarget:
    """A target of a benchmark with its references, the known structures to compare predictions with."""

    target: AnyTarget
    references: tuple[StructureFile, ...]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A benchmark: the targets whose data were found, and the reasons why others are missing.

    `missing` has a reason by name of the reference, or of the target if the list does not name its references. Only
    packaged lists may have missing targets.
    """

    table: BenchmarkTable
    targets: tuple[BenchmarkTarget, ...]
    missing: dict[str, str]


class MissingDataError(InputError):
    """Error for a file or a sequence of a target that was not found."""


def find_data(table: BenchmarkTable, data: Sequence[Path]) -> Benchmark:
    """Find the sequence, alignments and known structures of each target in a benchmark table.

    Paths in the table are relative to its directory; files are also looked up by name in the directories in `data`.
    For a target without files in the table, these directories are searched for known structures, <target>.fasta and
    <target>.a3m. `data` may also have FASTA files. Raise `InputError` if the data of a target are missing. In a list
    that helixfold contains, such targets are skipped instead; raise `InputError` only if none is left.
    """
    files = _DataFiles(table.path.parent, data)
    targets: list[BenchmarkTarget] = []
    missing: dict[str, str] = {}
    for row in table.rows:
        try:
            targets.append(files.target_of(row, missing if table.target_list is not None else None))
        except MissingDataError as error:
            if table.target_list is None:
                raise InputError.at(table.path, str(error), line=row.line, record=row.name) from None
            for name in row.references or (row.name,):
                missing.setdefault(name, str(error))
    if not targets:
        reason = next(iter(missing.values()))
        raise InputError(f"no data were found for any of the {len(table.rows)} targets of {table.name}: {reason}")
    return Benchmark(table=table, targets=tuple(targets), missing=missing)


class _DataFiles:
    """Index of the files with a benchmark's data, next to its table (in `folder`) and in directories."""

    def __init__(self, folder: Path, data: Sequence[Path]) -> None:
        self._folder = folder
        self._directories = [path for path in data if path.is_dir()]
        self._sequences: dict[str, str] = {}
        for path in data:
            if not path.is_dir():
                for record in read_fasta(path):
                    self._sequences.setdefault(record.name, record.sequence)
        self._structures: dict[str, StructureFile] = {}
        for directory in self._directories:
            for file in structure_files(directory):
                self._structures.setdefault(file.name.casefold(), file)

    def target_of(self, row: BenchmarkRow, missing: dict[str, str] | None) -> BenchmarkTarget:
        """Return the target of a row with its data. Raise `MissingDataError` if data are missing.

        If `missing` is a dictionary, missing references are added to it, and the target needs only one of them.
        """
        references = self._references(row, missing)
        alignments = tuple(self._named(name) for name in row.alignments) or tuple(
            self._of_target(row.name, ALIGNMENT_SUFFIXES)
        )
        templates = tuple(self._named(name) for name in row.templates)
        sequences = [row.sequence] if row.sequence else self._sequences_of(row, alignments, references)
        target: AnyTarget
        if len(sequences) > 1:
            target = ComplexInput(
                target=ComplexTarget.of(row.name, sequences), templates=templates, latest_template=row.latest_template
            )
        else:
            target = Target(
                name=row.name,
                sequence=sequences[0],
                alignments=alignments,
                templates=templates,
                latest_template=row.latest_template,
            )
        return BenchmarkTarget(target=target, references=references)

    def _references(self, row: BenchmarkRow, missing: dict[str, str] | None) -> tuple[StructureFile, ...]:
        """Return the known structures of a row, which it names or which have the target's name."""
        if not row.references:
            matches = [match.reference for match in by_name(row.name, list(self._structures.values()))]
            if not matches:
                raise MissingDataError("no known structure has its name; write it into the column references, or pass "
                                       "its directory with --data")  # fmt: skip
            return tuple(matches)
        references: list[StructureFile] = []
        for name in row.references:
            try:
                references.append(self._reference(name))
            except MissingDataError as error:
                if missing is None:
                    raise
                missing[name] = str(error)
        if not references:
            raise MissingDataError(f"none of its known structures was found ({', '.join(row.references)})")
        return tuple(references)

    def _reference(self, name: str) -> StructureFile:
        """Return the known structure with a name: a path next to the table, or a file in the directories."""
        path = self._folder / name
        if path.is_file():
            return structure_files(path)[0]
        structure = self._structures.get(name.casefold())
        if structure is None:
            file = next((each for each in self._structures.values() if each.path.name == name), None)
            if file is None:
                raise MissingDataError(f"the known structure {name} was not found")
            return file
        return structure

    def _named(self, name: str) -> Path:
        """Return the path of a file that the table names. Raise `MissingDataError` if it does not exist."""
        for directory in (self._folder, *self._directories):
            if os.path.exists(directory / name):
                return directory / name
        raise MissingDataError(f"no file {name} next to the table or in a directory of --data")

    def _of_target(self, name: str, suffixes: Iterable[str]) -> list[Path]:
        """Return the files with a target's name and one of the suffixes."""
        stems = dict.fromkeys((name, directory_name(name)))
        paths = (
            directory / f"{stem}{suffix}" for directory in self._directories for suffix in suffixes for stem in stems
        )
        return [path for path in paths if path.is_file()]

    def _sequences_of(
        self, row: BenchmarkRow, alignments: Sequence[Path], references: Sequence[StructureFile]
    ) -> list[str]:
        """Return the sequences of a target's chains, from its FASTA file, its alignment, or its only known structure.

        A structure of several chains is a complex of all of them, unless the target's name has one of the chains.
        """
        name = row.name
        if name in self._sequences:
            return [self._sequences[name]]
        for path in self._of_target(name, FASTA_SUFFIXES):
            records = read_fasta(path)
            if len(records) == 1:
                return [records[0].sequence]
        if alignments:
            return [read_alignment(alignments[0]).query]
        if max(len(references), len(row.references)) > 1:  # each may be only a part of the target
            raise MissingDataError("its sequence was not found; pass a FASTA file that has it with --data")
        chains = read_structure(references[0].path).chains
        chain_name = next((match.chain for match in by_name(name, references)), None)
        selected_chains = [chain for chain in chains if chain_name in (None, chain.name)] or list(chains)
        if chain_name is not None and len(selected_chains) != 1:
            raise MissingDataError(
                f"its sequence was not found, and {references[0].path.name} has {len(chains)} chains, none of them "
                f"{printable(chain_name)}; pass a FASTA file that has it with --data"
            )
        return [chain.sequence for chain in selected_chains]
