"""Find the data of a benchmark's targets: sequences, known structures, alignments and templates."""

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
    """A target of a benchmark, ready to be predicted, with the known structures to compare it with."""

    target: AnyTarget
    references: tuple[StructureFile, ...]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """The targets of a benchmark whose data are there, and what is left out of a list in the package.

    `missing` has the reasons by the names of known structures, or of targets whose known structures the list does not
    name.
    """

    table: BenchmarkTable
    targets: tuple[BenchmarkTarget, ...]
    missing: dict[str, str]


class MissingDataError(InputError):
    """Error for a file or a sequence of a target that is not there."""


def find_data(table: BenchmarkTable, data: Sequence[Path]) -> Benchmark:
    """Return the targets of a benchmark with their data.

    Files in cells of the table are looked for beside it, then by name in the directories in `data`; so is what the
    table does not name: known structures, <target>.fasta and <target>.a3m. `data` may also hold FASTA files. Raise
    `InputError` if data of a target are missing, except for a list in the package, whose targets are then left out; and
    if no target is left.
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
        raise InputError(f"there are data for none of the {len(table.rows)} targets of {table.name}: {reason}")
    return Benchmark(table=table, targets=tuple(targets), missing=missing)


class _DataFiles:
    """The files that a benchmark's data may be in: those beside its table and those in directories."""

    def __init__(self, beside: Path, data: Sequence[Path]) -> None:
        self._beside = beside
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
        """Return a row's target with its data. Raise `MissingDataError` if it cannot be predicted and compared.

        If `missing` is given, single references that are not there are added to it, and the others are enough.
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
        if not row.references:
            found = [match.reference for match in by_name(row.name, list(self._structures.values()))]
            if not found:
                raise MissingDataError("no known structure has its name; name it in the column references, or its "
                                       "directory by --data")  # fmt: skip
            return tuple(found)
        references: list[StructureFile] = []
        for name in row.references:
            try:
                references.append(self._reference(name))
            except MissingDataError as error:
                if missing is None:
                    raise
                missing[name] = str(error)
        if not references:
            raise MissingDataError(f"none of its known structures is there ({', '.join(row.references)})")
        return tuple(references)

    def _reference(self, name: str) -> StructureFile:
        path = self._beside / name
        if path.is_file():
            return structure_files(path)[0]
        found = self._structures.get(name.casefold())
        if found is None:
            file = next((each for each in self._structures.values() if each.path.name == name), None)
            if file is None:
                raise MissingDataError(f"there is no known structure {name}")
            return file
        return found

    def _named(self, name: str) -> Path:
        for directory in (self._beside, *self._directories):
            if os.path.exists(directory / name):
                return directory / name
        raise MissingDataError(f"there is no file {name}, neither beside the table nor in a directory of --data")

    def _of_target(self, name: str, suffixes: Iterable[str]) -> list[Path]:
        """Return the files in the directories that are named after a target."""
        stems = dict.fromkeys((name, directory_name(name)))
        paths = (
            directory / f"{stem}{suffix}" for directory in self._directories for suffix in suffixes for stem in stems
        )
        return [path for path in paths if path.is_file()]

    def _sequences_of(
        self, row: BenchmarkRow, alignments: Sequence[Path], references: Sequence[StructureFile]
    ) -> list[str]:
        """Return the sequences of a target's chains: of its FASTA file, its alignment, or its only known structure.

        A structure of several chains, none of which the target's name names, is a complex of all of them.
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
        if max(len(references), len(row.references)) > 1:  # each may be a part of it
            raise MissingDataError("its sequence is not there; pass a FASTA file that has it with --data")
        chains = read_structure(references[0].path).chains
        wanted = next((match.chain for match in by_name(name, references)), None)
        named = [chain for chain in chains if wanted in (None, chain.name)] or list(chains)
        if wanted is not None and len(named) != 1:
            raise MissingDataError(
                f"its sequence is not there, and {references[0].path.name} has {len(chains)} chains, none of them "
                f"{printable(wanted)}; pass a FASTA file that has it with --data"
            )
        return [chain.sequence for chain in named]
