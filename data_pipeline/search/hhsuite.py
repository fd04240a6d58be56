"""Search with hh-suite: HHblits finds homologs of a sequence, HHsearch finds templates that match an alignment.

A database is six files with a common prefix, such as `bfd_..._opt` for `bfd_..._opt_a3m.ffdata`. AlphaFold searches BFD
and Uniclust30 together with HHblits 3, and PDB70 with HHsearch and the alignment of the UniRef90 search (AlphaFold 2,
Suppl. Sec. 1.2.2 and 1.2.3).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from data_pipeline.io.config import Bound, Checked, at_least, between
from data_pipeline.io.errors import InputError
from data_pipeline.search.process import program_version, read_output, run_program, working_directory
from data_pipeline.search.tool import FileFormat

# hhsearch and hhblits crash or fail without the first two; they compute profiles that `_hhm` lacks.
_DATABASE_PARTS = ("_a3m", "_cs219", "_hhm")
_REQUIRED_DATABASE_PARTS = _DATABASE_PARTS[:2]
_MAX_COLUMNS = 20_001  # of a profile without -maxres; hh-suite drops the rest
_DATE_LINE = re.compile(rb"^Date .*\n", re.MULTILINE)


def check_databases(prefixes: tuple[Path, ...]) -> None:
    """Raise `InputError` with the first missing file of the databases, because hh-suite crashes without a message.

    At least one prefix is required.
    """
    if not prefixes:
        raise InputError("a search with hh-suite needs a database; pass its prefix")
    for prefix in prefixes:
        for part in _REQUIRED_DATABASE_PARTS:
            for ending in (".ffdata", ".ffindex"):
                path = prefix.with_name(f"{prefix.name}{part}{ending}")
                if not path.is_file():
                    advice = f"pass the path up to {part}{ending}, or download the database again"
                    raise InputError.at(path, f"this file of the hh-suite database is missing; {advice}")


@dataclass(frozen=True, kw_only=True)
class HhsuiteSearch(Checked):
    """Search of one or more databases at once with an hh-suite program.

    `databases` are prefixes, `cpus` is the number of threads, and `timeout` is in seconds.
    """

    program: Path
    databases: tuple[Path, ...]  # prefixes
    cpus: Annotated[int, at_least(1)] = 4
    timeout: float | None = None  # seconds

    def __post_init__(self) -> None:
        super().__post_init__()
        check_databases(self.databases)

    def identity_of(self, tool: str, arguments: Sequence[str]) -> str:
        """Return `tool`, the program's version, `arguments` and the databases in one line.

        Databases are identified by name and size, because their folders differ between machines.
        """
        databases = " ".join(f"{prefix.name}:{_size(prefix)}" for prefix in self.databases)
        return f"{tool} {program_version(self.program)} {' '.join(arguments)} in {databases}"

    def run(
        self, query_file: str, query: bytes, columns: int, arguments: Sequence[str], outputs: Sequence[str]
    ) -> bytes:
        """Search with a query of `columns` columns and the options `arguments`; return the first output file's content.

        `query_file` is the name of the file for the content `query`. `outputs` lists the options for output files, each
        followed by a file name. Raise `SearchError` if the program fails.
        """
        columns += 3  # hh-suite uses two columns at the ends, and drops the last one
        length = ["-maxres", str(columns)] if columns > _MAX_COLUMNS else []
        databases: list[str | Path] = [word for prefix in self.databases for word in ("-d", prefix.absolute())]
        with working_directory() as directory:
            directory.joinpath(query_file).write_bytes(query)
            command = [self.program, *arguments, *databases, "-i", query_file, *outputs]
            command += ["-v", "1", "-cpu", str(self.cpus), *length]
            run_program(command, timeout=self.timeout, directory=directory)
            return read_output(self.program, directory / outputs[1])


def _size(prefix: Path) -> int:
    """Return the total size in bytes of a database's .ffdata files."""
    paths = [prefix.with_name(f"{prefix.name}{part}.ffdata") for part in _DATABASE_PARTS]
    return sum(path.stat().st_size for path in paths if path.is_file())


@dataclass(frozen=True, kw_only=True)
class HhblitsOptions(Checked):
    """Options of HHblits; the defaults are AlphaFold's.

    `e_value` is the max E-value of hits in the alignment, and `max_rows` limits the rows of an input alignment. Counts
    of hits are `max_realigned` (whose alignment is refined), `max_prefiltered` (max that pass the second prefilter) and
    `min_prefiltered` (min that pass the first one). `unfiltered` keeps near-duplicate rows.
    """

    iterations: Annotated[int, between(1, 8)] = 3
    # Max E-value of hits in the alignment.
    e_value: Annotated[float, Bound("be above 0 and at most 1", lambda value: 0 < value <= 1)] = 0.001
    max_rows: Annotated[int, at_least(1)] = 1_000_000  # of an input alignment
    max_realigned: Annotated[int, at_least(1)] = 100_000  # hits whose alignment is refined
    max_prefiltered: Annotated[int, at_least(1)] = 100_000  # hits that pass the second prefilter
    min_prefiltered: Annotated[int, at_least(1)] = 1_000  # hits that pass the first prefilter, whatever their score
    unfiltered: bool = False  # keep near-duplicate rows

    def arguments(self) -> list[str]:
        """Return the options as command-line arguments of HHblits 3."""
        arguments = ["-n", str(self.iterations), "-e", f"{self.e_value:g}", "-maxseq", str(self.max_rows)]
        arguments += ["-realign_max", str(self.max_realigned), "-maxfilt", str(self.max_prefiltered)]
        arguments += ["-min_prefilter_hits", str(self.min_prefiltered)]
        return [*arguments, "-all"] if self.unfiltered else arguments


@dataclass(frozen=True, kw_only=True)
class Hhblits(HhsuiteSearch):
    """HHblits search of one or more databases at once for homologs of a sequence; the result is an a3m."""

    file_format: ClassVar[FileFormat] = "a3m"

    options: HhblitsOptions = field(default_factory=HhblitsOptions)

    def identity(self) -> str:
        """Return tool, version, options and databases in one line; equal lines give equal results."""
        return self.identity_of("hhblits", self.options.arguments())

    def search(self, sequence: str) -> bytes:
        """Return the a3m of all homologs; the target is the first row, named "query"."""
        query = f">query\n{sequence}\n".encode()
        outputs = ("-oa3m", "hits.a3m", "-o", "hits.hhr")
        return self.run("query.fasta", query, len(sequence), self.options.arguments(), outputs)


@dataclass(frozen=True, kw_only=True)
class HhsearchOptions(Checked):
    """Options of HHsearch; the default is AlphaFold's. `max_rows` limits the rows of the alignment."""

    max_rows: Annotated[int, at_least(1)] = 1_000_000  # of the alignment

    def arguments(self) -> list[str]:
        """Return the options as command-line arguments of HHsearch 3."""
        return ["-maxseq", str(self.max_rows)]


@dataclass(frozen=True, kw_only=True)
class Hhsearch(HhsuiteSearch):
    """HHsearch search of one or more databases at once for chains that match an alignment; the result is an hhr."""

    input_format: ClassVar[FileFormat] = "a3m"
    file_format: ClassVar[FileFormat] = "hhr"

    options: HhsearchOptions = field(default_factory=HhsearchOptions)

    def identity(self) -> str:
        """Return tool, version, options and databases in one line; equal lines give equal results."""
        return self.identity_of("hhsearch", self.options.arguments())

    def search(self, alignment: bytes) -> bytes:
        """Return the hhr of an a3m whose first row is the target; the date is removed to make results reproducible."""
        end = alignment.find(b"\n>", 1)
        columns = len(alignment) if end < 0 else end  # residues of the target, or slightly more
        hits = self.run("query.a3m", alignment, columns, self.options.arguments(), ("-o", "hits.hhr"))
        return _DATE_LINE.sub(b"", hits, count=1)
