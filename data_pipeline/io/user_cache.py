"""The cache directory of the site's configuration or of the user, which a process without a home may not have: where it
is, what helixfold keeps there, and how that is removed.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs

from data_pipeline.io.site_configuration import site_configuration

NO_CACHE = "no home directory is known, and so no cache: set HOME or XDG_CACHE_HOME to a directory of yours"


def user_cache() -> Path | None:
    """Return the configured cache directory, or helixfold's directory in the user's cache; None without a home.

    It need not exist, and it may be one that cannot be written.
    """
    if (configured := site_configuration().cache_directory) is not None:
        return configured
    try:
        directory = Path(platformdirs.user_cache_dir("helixfold"))
    except RuntimeError:
        return None
    return directory if directory.is_absolute() else None  # `~` stays where nobody knows what it means


def search_cache() -> Path | None:
    """Return the configured directory for results of searches, or the one in the cache; None if there is neither."""
    if (configured := site_configuration().search_cache) is not None:
        return configured
    own = user_cache()
    return None if own is None else own / "databases"


@dataclass(frozen=True, kw_only=True)
class CachedItem:
    """A file of a cache, or a directory that is useless without any of its files. The time is of its newest file."""

    path: Path
    size: int
    time: float

    def remove(self) -> None:
        """Remove it, and with a directory all that is in it."""
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class CacheKind:
    """What helixfold keeps for one purpose: everything in a directory whose name has the pattern, and nothing else.

    With `has`, a directory counts only if it contains a file of this name.
    """

    name: str
    description: str
    directory: Path | None
    pattern: str
    has: str = ""

    def items(self) -> Iterator[CachedItem]:
        """Yield what is there. Links are left out: they lead to files of somebody else."""
        for path in sorted(self.directory.glob(self.pattern)) if self.directory is not None else ():
            if path.is_symlink() or not (path / self.has).exists():
                continue
            files = [each for each in (path, *path.rglob("*")) if not each.is_symlink() and each.is_file()]
            states = [each.stat() for each in files] or [path.stat()]
            size = sum(each.st_blocks * 512 for each in states)
            yield CachedItem(path=path, size=size, time=max(each.st_mtime for each in states))


def cache_kinds(weights: Path | None, searches: Path | None = None) -> tuple[CacheKind, ...]:
    """Return all that is kept on this machine; `weights` and `searches` (`search_cache` if None) are directories."""
    own, searches, digit = user_cache(), searches or search_cache(), "[0-9a-f]"

    def within(directory: Path | None, name: str) -> Path | None:
        return None if directory is None else directory / name

    return (
        CacheKind(name="weights", description="downloaded parameters", directory=weights, pattern="params_*.npz"),
        CacheKind(
            name="searches",
            description="results of MMseqs2 searches",
            directory=within(searches, "searches"),
            pattern=f"{digit * 2}/{digit * 62}.gz",
        ),
        CacheKind(
            name="databases",
            description="databases converted for MMseqs2",
            directory=searches,
            pattern=f"*-{digit * 16}",
            has="sequences.dbtype",
        ),
        CacheKind(
            name="templates",
            description="structures from MSA servers",
            directory=within(searches, "structures"),
            pattern="*.cif",
        ),
        CacheKind(
            name="entries",
            description="entries fetched by --fetch-inputs",
            directory=within(own, "entries"),
            pattern="[0-9A-Z]*.[cf][ai]*",  # .cif and .fasta
        ),
        CacheKind(
            name="loops",
            description="loops compiled by Numba",
            directory=within(own, "loops"),
            pattern=digit * 16,
        ),
    )


def can_be_written(directory: Path) -> bool:
    """Return whether files can be made in a directory of a cache, or the directory itself where it does not exist."""
    existing = next(path for path in (directory, *directory.absolute().parents) if os.path.exists(path))
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def writable_cache(directory: Path) -> Path:
    """Return a directory of a cache, or if it cannot be written a temporary one, which this process removes at its end.

    The temporary one is below TMPDIR.
    """
    return directory if can_be_written(directory) else _temporary_cache()


@cache
def _temporary_cache() -> Path:
    directory = tempfile.mkdtemp(prefix="helixfold-cache-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)
