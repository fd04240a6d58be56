"""Relatives of a sequence from databases of profiles (BFD, UniRef30), by HHblits.

AlphaFold 2, Suppl. Sec. 1.2.2: HHblits 3 over BFD and Uniclust30 together.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from data_pipeline.search.hhsuite import check_databases, database_arguments, database_identity, length_arguments
from data_pipeline.search.process import program_version, run_program, working_directory, written_by
from data_pipeline.search.tool import FileFormat


@dataclass(frozen=True, kw_only=True)
class HhblitsOptions:
    """What HHblits looks for; AlphaFold's settings unless given."""

    iterations: int = 3
    e_value: float = 0.001  # of hits whose rows are taken over
    max_rows: int = 1_000_000  # of an input alignment
    max_realigned: int = 100_000  # hits whose alignment is refined
    max_prefiltered: int = 100_000  # hits that pass the second prefilter
    min_prefiltered: int = 1_000  # hits that pass the first one whatever their score
    unfiltered: bool = False  # keep rows that are nearly equal to others

    def __post_init__(self) -> None:
        if not 1 <= self.iterations <= 8:
            raise ValueError(f"iterations must be between 1 and 8, got {self.iterations}")
        if not (math.isfinite(self.e_value) and 0 < self.e_value <= 1):
            raise ValueError(f"e_value must be above 0 and at most 1, got {self.e_value}")
        for name in ("max_rows", "max_realigned", "max_prefiltered", "min_prefiltered"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def arguments(self) -> list[str]:
        """The command line of HHblits 3."""
        arguments = ["-n", str(self.iterations), "-e", f"{self.e_value:g}", "-maxseq", str(self.max_rows)]
        arguments += ["-realign_max", str(self.max_realigned), "-maxfilt", str(self.max_prefiltered)]
        arguments += ["-min_prefilter_hits", str(self.min_prefiltered)]
        return [*arguments, "-all"] if self.unfiltered else arguments


@dataclass(frozen=True, kw_only=True)
class Hhblits:
    """Searches hh-suite databases, all at once, for a sequence's relatives; the result is an a3m."""

    file_format: ClassVar[FileFormat] = "a3m"

    program: Path
    databases: tuple[Path, ...]  # prefixes
    options: HhblitsOptions = field(default_factory=HhblitsOptions)
    cpus: int = 4
    timeout: float | None = None  # seconds

    def __post_init__(self) -> None:
        if self.cpus < 1:
            raise ValueError(f"cpus must be at least 1, got {self.cpus}")
        check_databases(self.databases)

    def identity(self) -> str:
        """Tool, version, options and databases; equal lines give equal results."""
        version = program_version(self.program)
        return f"hhblits {version} {' '.join(self.options.arguments())} in {database_identity(self.databases)}"

    def search(self, sequence: str) -> bytes:
        """The a3m of all relatives, the target first under the name "query"."""
        with working_directory() as directory:
            directory.joinpath("query.fasta").write_text(f">query\n{sequence}\n")
            command = [self.program, *self.options.arguments(), *database_arguments(self.databases)]
            command += ["-i", "query.fasta", "-oa3m", "hits.a3m", "-o", "hits.hhr"]
            command += ["-v", "1", "-cpu", str(self.cpus), *length_arguments(len(sequence))]
            run_program(command, timeout=self.timeout, directory=directory)
            return written_by(self.program, directory / "hits.a3m")
