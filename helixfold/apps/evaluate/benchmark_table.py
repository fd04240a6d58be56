"""Read a benchmark: a table of targets with references, alignments and templates, or a packaged list of targets."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import MappingProxyType

from data_pipeline.io.errors import InputError, did_you_mean, printable
from data_pipeline.parse.csv_table import read_rows, table_record
from data_pipeline.parse.fasta import file_name_problem
from helixfold.runtime.options import calendar_date

_LISTS_DIRECTORY = Path(__file__).parent / "lists"
_HELIXFOLD_PAPER = "HelixFold, arXiv 2207.05477"


@dataclass(frozen=True, kw_only=True)
class PublishedScores:
    """Published mean scores of a program, from 0 to 1; None if not published.

    `source` is the publication, and `remark` a note for the table.
    """

    program: str
    source: str
    tm_score: float | None = None
    lddt: float | None = None
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class TargetList:
    """A packaged list of targets: names and dates, without sequences or structures.

    `path` is its file, and `what` a description of the targets, such as domains of CASP14. `count` is the number of
    structures in the published list. `origin` is the source of the names, with known differences from the publication.
    """

    path: Path
    what: str
    count: int
    origin: str
    published: tuple[PublishedScores, ...]


# HelixFold's paper has its means; AlphaFold's TM-scores are equal, and its lDDT is 0.9 and 1.5 points higher. The paper
# does not state whether lDDT is for all atoms or for C-alpha atoms.
TARGET_LISTS: Mapping[str, TargetList] = MappingProxyType(
    {
        "casp14": TargetList(
            path=_LISTS_DIRECTORY / "casp14.tsv",
            what="domains of CASP14",
            count=87,
            origin=(
                "the 87 domains of AlphaFold's evaluation (Jumper et al. 2021), as a public program that repeats it "
                "lists them; HelixFold's paper gives the number 87 and no names. Templates are those up to 2020-05-14, "
                "AlphaFold's limit for CASP14"
            ),
            published=(
                PublishedScores(program="HelixFold", source=_HELIXFOLD_PAPER, tm_score=0.8771, lddt=0.7932),
                PublishedScores(
                    program="AlphaFold 2", source=_HELIXFOLD_PAPER, lddt=0.8022, remark="TM-score equal to HelixFold's"
                ),
            ),
        ),
        "casp15": TargetList(
            path=_LISTS_DIRECTORY / "casp15.tsv",
            what="domains of CASP15",
            count=96,
            origin=(
                "96 domains of CASP15 as a public benchmark lists them; the assessors had more, but not all structures "
                "are public. Templates are those up to 2022-05-01, before the first target"
            ),
            published=(),
        ),
        "cameo_2021": TargetList(
            path=_LISTS_DIRECTORY / "cameo_2021.tsv",
            what="chains of CAMEO, 2021-09-04 to 2022-02-19",
            count=371,
            origin=(
                "all 372 chains that CAMEO lists for these weeks, by the table in NVIDIA's BioNeMo (the one in "
                "EigenFold's repository is equal for the weeks that it has); HelixFold's paper has 371 and no names, "
                "so one chain here is not among them"
            ),
            published=(
                PublishedScores(program="HelixFold", source=_HELIXFOLD_PAPER, tm_score=0.8885, lddt=0.8344),
                PublishedScores(
                    program="AlphaFold 2", source=_HELIXFOLD_PAPER, lddt=0.8494, remark="TM-score equal to HelixFold's"
                ),
            ),
        ),
        "cameo_2022": TargetList(
            path=_LISTS_DIRECTORY / "cameo_2022.tsv",
            what="chains of CAMEO, August 2022",
            count=60,
            origin=(
                "all 60 chains that CAMEO lists for 2022-08-06 to 2022-08-27, by the table in EigenFold's repository; "
                "HelixFold's README has 60 and no names"
            ),
            published=(PublishedScores(program="HelixFold", source="HelixFold's README", tm_score=0.9026),),
        ),
        "pdb_2022_2025": TargetList(
            path=_LISTS_DIRECTORY / "pdb_2022_2025.tsv",
            what="biological assemblies of PDB entries released from 2022 to 2025",
            count=1000,
            origin=(
                "the 1,000 entries of NVIDIA's benchmark pdb-temporal-2022-2025-v1 (CC0): 750 monomers, 150 dimers, 50 "
                "trimers and 50 tetramers, all newer than the training sets of AlphaFold-Multimer v3; templates are "
                "those up to 2021-09-30"
            ),
            published=(),
        ),
    }
)


_FILE_SEPARATOR = ";"
_COLUMNS = ("id", "sequence", "references", "msa", "templates", "date")


@dataclass(frozen=True, kw_only=True)
class BenchmarkRow:
    """A row of a benchmark's table: one target, with the names of its files."""

    line: int
    name: str
    sequence: str  # empty: looked up in the data
    references: tuple[str, ...]  # empty: looked up by the target's name
    alignments: tuple[str, ...]
    templates: tuple[str, ...]
    latest_template: date | None


@dataclass(frozen=True, kw_only=True)
class BenchmarkTable:
    """The rows of a benchmark; `target_list` describes a packaged list, which has no data, and is None for a table."""

    name: str
    path: Path
    rows: tuple[BenchmarkRow, ...]
    target_list: TargetList | None = None

    @property
    def structures(self) -> int:
        """Return the number of known structures, counting one for a row without references."""
        return sum(max(1, len(row.references)) for row in self.rows)


def read_benchmark(name: str) -> BenchmarkTable:
    """Read a benchmark; `name` is a packaged list, or the path of a table (.csv, .tsv).

    Raise `InputError` if neither exists, or for a row that cannot be used.
    """
    target_list = TARGET_LISTS.get(name)
    path = Path(name) if target_list is None else target_list.path
    if not path.is_file():
        lists = ", ".join(TARGET_LISTS)
        raise InputError.at(path, f"no such table or packaged list; the lists are {lists}")
    return BenchmarkTable(
        name=name if target_list is not None else path.name, path=path, rows=tuple(_rows(path)), target_list=target_list
    )


def _rows(path: Path) -> Iterator[BenchmarkRow]:
    """Yield the checked rows of a table."""
    delimiter = "," if path.name.lower().endswith((".csv", ".csv.gz")) else "\t"
    seen: dict[str, int] = {}
    for line, cells in read_rows(path, ("id",), delimiter):
        if not seen and (unknown := [name for name in cells if name not in _COLUMNS]):
            columns = f"{', '.join(_COLUMNS)}{did_you_mean(unknown[0], _COLUMNS)}"
            problem = f"unknown column '{printable(unknown[0], 40)}'; the columns of a benchmark are {columns}"
            raise InputError.at(path, problem, line=1)
        name, sequence = cells["id"], cells.get("sequence", "")
        name_problem = file_name_problem(name)
        if name_problem is not None:
            raise InputError.at(path, name_problem, line=line, record=name or None)
        if name in seen:
            raise InputError.at(path, f"the same name as in line {seen[name]}", line=line, record=name)
        seen[name] = line
        yield BenchmarkRow(
            line=line,
            name=name,
            sequence=table_record(path, line, name, sequence).sequence if sequence else "",
            references=_files(cells.get("references", "")),
            alignments=_files(cells.get("msa", "")),
            templates=_files(cells.get("templates", "")),
            latest_template=_date(path, line, name, cells.get("date", "")),
        )
    if not seen:
        raise InputError.at(path, "it has no targets; write a row with an id for each")


def _files(cell: str) -> tuple[str, ...]:
    """Return the names of files in a cell, which are separated by semicolons."""
    return tuple(name for part in cell.split(_FILE_SEPARATOR) if (name := part.strip()))


def _date(path: Path, line: int, name: str, cell: str) -> date | None:
    """Return the date in a cell; None if it is empty."""
    try:
        return calendar_date(cell) if cell else None
    except ValueError as error:
        raise InputError.at(path, f"the date {error}", line=line, record=name) from None
