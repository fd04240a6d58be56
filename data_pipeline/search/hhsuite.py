"""Databases of hh-suite: six files with a common prefix, such as `bfd_..._opt` for `bfd_..._opt_a3m.ffdata`."""

from pathlib import Path

from data_pipeline.errors import InputError

PACKAGE = "hhsuite (HH-suite 3)"
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


def database_arguments(prefixes: tuple[Path, ...]) -> list[str | Path]:
    """The databases as hhblits and hhsearch take them."""
    return [word for prefix in prefixes for word in ("-d", prefix.absolute())]


def length_arguments(residues: int) -> list[str | Path]:
    """What a target of this length needs, so that it is not cut."""
    columns = residues + 3  # two are used at the ends, and the last one is lost
    return ["-maxres", str(columns)] if columns > _MAX_COLUMNS else []


def database_identity(prefixes: tuple[Path, ...]) -> str:
    """Names and sizes, not folders: the same database may lie elsewhere on another machine."""
    return " ".join(f"{prefix.name}:{_size(prefix)}" for prefix in prefixes)


def _size(prefix: Path) -> int:
    paths = [prefix.with_name(f"{prefix.name}{part}.ffdata") for part in _PARTS]
    return sum(path.stat().st_size for path in paths if path.is_file())
