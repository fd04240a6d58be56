"""The cache directory of the configuration or the user: its location, its content, and how to remove items.

A process without a home directory may have no cache; `NO_CACHE` is the message for this.
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

NO_CACHE = "the home directory is unknown, so there is no cache: set HOME or XDG_CACHE_HOME to your directory"


def user_cache() -> Path | None:
    """Return the configured cache directory, or helixfold's directory in the user's cache; None without a home.

    It may not exist or may not be writable.
    """
    if (configured := site_configuration().cache_directory) is not None:
        return configured
    try:
        directory = Path(platformdirs.user_cache_dir("helixfold"))
    except RuntimeError:
        return None
    return directory if directory.is_absolute() else None  # `~` remains if the home directory is unknown


def search_cache() -> Path | None:
    """Return the configured directory for results of searches and converted databases, or the default in the cache.

    Return None without a cache. The directory may not exist.
    """
    if (configured := site_configuration().search_cache) is not None:
        return configured
    own = user_cache()
    return None if own is None else own / "databases"


@dataclass(frozen=True, kw_only=True)
class CachedItem:
    """A file or directory in a cache that can be removed separately.

    `size` is the space on the disk in bytes, and `time` the modification time of its newest file, in seconds.
    """

    path: Path
    size: int
    time: float

    def remove(self) -> None:
        """Remove the file, or the directory with its content."""
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class CacheKind:
    """The cached items of one purpose: all files and directories below `directory` that match the glob `pattern`.

    With `has`, an item counts only if it is a directory with a file of this name. `name` identifies the purpose, and
    `description` is for users. Without a `directory`, there are no items.
    """

    name: str
    description: str
    directory: Path | None
    pattern: str
    has: str = ""

    def items(self) -> Iterator[CachedItem]:
        """Yield the items in the order of their paths, without links, because these lead to files of others."""
        for path in sorted(self.directory.glob(self.pattern)) if self.directory is not None else ():
            if path.is_symlink() or not (path / self.has).exists():
                continue
            files = [each for each in (path, *path.rglob("*")) if not each.is_symlink() and each.is_file()]
            states = [each.stat() for each in files] or [path.stat()]
            size = sum(each.st_blocks * 512 for each in states)
            yield CachedItem(path=path, size=size, time=max(each.st_mtime for each in states))


def cache_kinds(weights: Path | None, searches: Path | None = None) -> tuple[CacheKind, ...]:
    """Return all kinds of cached items, of which some are in the directories `weights` and `searches`.

    `searches` None is `search_cache`; `weights` None has no items. The other kinds are in `user_cache`.
    """
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
    """Return whether a directory is writable or, if it does not exist, the nearest existing directory above it."""
    existing = next(path for path in (directory, *directory.absolute().parents) if os.path.exists(path))
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def writable_cache(directory: Path) -> Path:
    """Return `directory` if it is writable, else a temporary directory that is removed when this process exits.

    The temporary directory is below TMPDIR.
    """
    return directory if can_be_written(directory) else _temporary_cache()


@cache
def _temporary_cache() -> Path:
    """Return a directory that is made once per process and deleted at its end."""
    directory = tempfile.mkdtemp(prefix="helixfold-cache-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)
