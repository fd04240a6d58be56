"""Read a benchmark: a table of targets with their references, alignments and templates, or a list in the package."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from data_pipeline.errors import InputError, printable
from data_pipeline.parse.csv_table import read_rows, table_record
from data_pipeline.parse.fasta import target_name_problem
from helixfold.evaluation.published import TARGET_LISTS, TargetList
from helixfold.options import calendar_date

_BETWEEN_FILES = ";"
_COLUMNS = ("id", "sequence", "references", "msa", "templates", "date")


@dataclass(frozen=True, kw_only=True)
class BenchmarkRow:
    """One target of a benchmark, as its table has it; files are still names."""

    line: int
    name: str
    sequence: str  # empty: to be found
    references: tuple[str, ...]  # empty: to be found by the target's name
    alignments: tuple[str, ...]
    templates: tuple[str, ...]
    latest_template: date | None


@dataclass(frozen=True, kw_only=True)
class BenchmarkTable:
    """The rows of a benchmark. `target_list` describes it if it is one in the package, which names no data."""

    name: str
    path: Path
    rows: tuple[BenchmarkRow, ...]
    target_list: TargetList | None = None

    @property
    def structures(self) -> int:
        """Return the number of known structures: those that the rows name, one for a row that names none."""
        return sum(max(1, len(row.references)) for row in self.rows)


def read_benchmark(name: str) -> BenchmarkTable:
    """Return the benchmark of this name in the package, else the one in the table (.csv, .tsv) at this path.

    Raise `InputError` if there is neither, or for a row that cannot be used.
    """
    target_list = TARGET_LISTS.get(name)
    path = Path(name) if target_list is None else target_list.path
    if not path.is_file():
        lists = ", ".join(TARGET_LISTS)
        raise InputError.at(path, f"there is no such table, and no list of this name in the package ({lists})")
    return BenchmarkTable(
        name=name if target_list is not None else path.name, path=path, rows=tuple(_rows(path)), target_list=target_list
    )


def _rows(path: Path) -> Iterator[BenchmarkRow]:
    delimiter = "," if path.name.lower().endswith((".csv", ".csv.gz")) else "\t"
    seen: dict[str, int] = {}
    for line, cells in read_rows(path, ("id",), delimiter):
        if not seen and (unknown := [name for name in cells if name not in _COLUMNS]):
            problem = f"there is no column '{printable(unknown[0], 40)}' in a benchmark; it has {', '.join(_COLUMNS)}"
            raise InputError.at(path, problem, line=1)
        name, sequence = cells["id"], cells.get("sequence", "")
        name_problem = target_name_problem(name)
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
        raise InputError.at(path, "there is no target in it; write a row with an id for each")


def _files(cell: str) -> tuple[str, ...]:
    return tuple(name for part in cell.split(_BETWEEN_FILES) if (name := part.strip()))


def _date(path: Path, line: int, name: str, cell: str) -> date | None:
    try:
        return calendar_date(cell) if cell else None
    except ValueError as error:
        raise InputError.at(path, f"the date {error}", line=line, record=name) from None
