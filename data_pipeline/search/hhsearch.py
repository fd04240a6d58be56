"""Chains of known structure that resemble an alignment, by HHsearch in a database of profiles such as PDB70.

AlphaFold 2, Suppl. Sec. 1.2.3: HHsearch with the alignment of the UniRef90 search, over PDB70.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from data_pipeline.search.hhsuite import check_databases, database_arguments, database_identity, length_arguments
from data_pipeline.search.process import program_version, run_program, working_directory, written_by
from data_pipeline.search.tool import FileFormat

_DATE_LINE = re.compile(rb"^Date .*\n", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class HhsearchOptions:
    """What HHsearch looks for; AlphaFold's settings unless given."""

    max_rows: int = 1_000_000  # of the alignment

    def __post_init__(self) -> None:
        if self.max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, got {self.max_rows}")

    def arguments(self) -> list[str]:
        """The command line of HHsearch 3."""
        return ["-maxseq", str(self.max_rows)]


@dataclass(frozen=True, kw_only=True)
class Hhsearch:
    """Searches hh-suite databases, all at once, for chains that resemble an alignment; the result is an hhr."""

    input_format: ClassVar[FileFormat] = "a3m"
    file_format: ClassVar[FileFormat] = "hhr"

    program: Path
    databases: tuple[Path, ...]  # prefixes
    options: HhsearchOptions = field(default_factory=HhsearchOptions)
    cpus: int = 4
    timeout: float | None = None  # seconds

    def __post_init__(self) -> None:
        if self.cpus < 1:
            raise ValueError(f"cpus must be at least 1, got {self.cpus}")
        check_databases(self.databases)

    def identity(self) -> str:
        """Tool, version, options and databases; equal lines give equal results."""
        version = program_version(self.program)
        return f"hhsearch {version} {' '.join(self.options.arguments())} in {database_identity(self.databases)}"

    def search(self, alignment: bytes) -> bytes:
        """The hhr of an a3m whose first row is the target, without the date: equal searches give equal bytes."""
        with working_directory() as directory:
            directory.joinpath("query.a3m").write_bytes(alignment)
            command = [self.program, *self.options.arguments(), *database_arguments(self.databases)]
            command += ["-i", "query.a3m", "-o", "hits.hhr"]
            command += ["-v", "1", "-cpu", str(self.cpus), *length_arguments(_columns(alignment))]
            run_program(command, timeout=self.timeout, directory=directory)
            return _DATE_LINE.sub(b"", written_by(self.program, directory / "hits.hhr"), count=1)


def _columns(alignment: bytes) -> int:
    """Residues of the target, or somewhat more."""
    end = alignment.find(b"\n>", 1)
    return len(alignment) if end < 0 else end
