"""Find the cache directory of the site's configuration or of the user, which a process without a home may not have."""

import atexit
import os
import shutil
import tempfile
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
