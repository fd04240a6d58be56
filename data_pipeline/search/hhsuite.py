"""Run HHblits and HHsearch, and check the databases that they search.

A database is six files with a common prefix, such as `bfd_..._opt` for `bfd_..._opt_a3m.ffdata`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.errors import InputError, check_at_least
from data_pipeline.search.process import program_version, read_output, run_program, working_directory

# hhsearch and hhblits crash or fail without the first two; profiles that are missing in `_hhm` they compute.
_PARTS = ("_a3m", "_cs219", "_hhm")
_REQUIRED_PARTS = _PARTS[:2]
_MAX_COLUMNS = 20_001  # of a profile unless -maxres is given; hh-suite cuts off the rest


def check_databases(prefixes: tuple[Path, ...]) -> None:
    """Raise an `InputError` that names the first missing file; hh-suite itself crashes without a message."""
    if not prefixes:
        raise InputError("a search with hh-suite needs a database; name its prefix")
    for prefix in prefixes:
        for part in _REQUIRED_PARTS:
            for ending in (".ffdata", ".ffindex"):
                path = prefix.with_name(f"{prefix.name}{part}{ending}")
                if not path.is_file():
                    advice = f"name the database by what comes before {part}{ending}, or fetch it again"
                    raise InputError.at(path, f"there is no such file of the hh-suite database; {advice}")


@dataclass(frozen=True, kw_only=True)
class HhsuiteSearch:
    """Search with a program of hh-suite in one or more databases, all at once."""

    program: Path
    databases: tuple[Path, ...]  # prefixes
    cpus: int = 4
    timeout: float | None = None  # seconds

    def __post_init__(self) -> None:
        check_at_least(self, cpus=1)
        check_databases(self.databases)

    def identity_of(self, tool: str, arguments: Sequence[str]) -> str:
        """Return tool, version, options and databases in one line.

        Databases are described by name and size, because their folder may differ on another machine.
        """
        databases = " ".join(f"{prefix.name}:{_size(prefix)}" for prefix in self.databases)
        return f"{tool} {program_version(self.program)} {' '.join(arguments)} in {databases}"

    def run(
        self, query_file: str, query: bytes, columns: int, arguments: Sequence[str], outputs: Sequence[str]
    ) -> bytes:
        """Search with a query of so many columns, none of which is cut off; return the content of the first output.

        `outputs` lists the options for output files, each followed by a file name.
        """
        columns += 3  # hh-suite uses two at the ends, and loses the last one
        length = ["-maxres", str(columns)] if columns > _MAX_COLUMNS else []
        databases: list[str | Path] = [word for prefix in self.databases for word in ("-d", prefix.absolute())]
        with working_directory() as directory:
            directory.joinpath(query_file).write_bytes(query)
            command = [self.program, *arguments, *databases, "-i", query_file, *outputs]
            command += ["-v", "1", "-cpu", str(self.cpus), *length]
            run_program(command, timeout=self.timeout, directory=directory)
            return read_output(self.program, directory / outputs[1])


def _size(prefix: Path) -> int:
    paths = [prefix.with_name(f"{prefix.name}{part}.ffdata") for part in _PARTS]
    return sum(path.stat().st_size for path in paths if path.is_file())
