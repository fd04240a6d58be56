"""What HHblits and HHsearch have in common: how they are run, and the databases that they search.

A database is six files with a common prefix, such as `bfd_..._opt` for `bfd_..._opt_a3m.ffdata`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.errors import InputError, check_at_least
from data_pipeline.search.process import program_version, read_output, run_program, working_directory

# hhsearch and hhblits crash or fail without the first two; profiles that are not in `_hhm` they compute.
_PARTS = ("_a3m", "_cs219", "_hhm")
_NEEDED_PARTS = _PARTS[:2]
_MAX_COLUMNS = 20_001  # of a profile unless -maxres is given; hh-suite cuts off what is beyond


def check_databases(prefixes: tuple[Path, ...]) -> None:
    """Raise `InputError` that names the first missing file; hh-suite itself would crash without a word."""
    if not prefixes:
        raise InputError("a search with hh-suite needs a database; name its prefix")
    for prefix in prefixes:
        for part in _NEEDED_PARTS:
            for ending in (".ffdata", ".ffindex"):
                path = prefix.with_name(f"{prefix.name}{part}{ending}")
                if not path.is_file():
                    advice = f"name the database by what comes before {part}{ending}, or fetch it again"
                    raise InputError.at(path, f"there is no such file of the hh-suite database; {advice}")


@dataclass(frozen=True, kw_only=True)
class HhsuiteSearch:
    """A program of hh-suite with the databases that it searches, all at once."""

    program: Path
    databases: tuple[Path, ...]  # prefixes
    cpus: int = 4
    timeout: float | None = None  # seconds

    def __post_init__(self) -> None:
        check_at_least(self, cpus=1)
        check_databases(self.databases)

    def described(self, tool: str, arguments: Sequence[str]) -> str:
        """Tool, version, options and databases by name and size, not by folder, which another machine has elsewhere."""
        databases = " ".join(f"{prefix.name}:{_size(prefix)}" for prefix in self.databases)
        return f"{tool} {program_version(self.program)} {' '.join(arguments)} in {databases}"

    def run(
        self, query_file: str, query: bytes, columns: int, arguments: Sequence[str], outputs: Sequence[str]
    ) -> bytes:
        """The first of the output files after a search with a query of so many columns, of which none is cut.

        `outputs` are options that name output files, and these names.
        """
        columns += 3  # two are used at the ends, and the last one is lost
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
