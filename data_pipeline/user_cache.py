"""Find the user's cache directory, which a process without a home does not have."""

from pathlib import Path

import platformdirs

NO_CACHE = "no home directory is known, and so no cache: set HOME or XDG_CACHE_HOME to a directory of yours"


def user_cache() -> Path | None:
    """Return helixfold's directory in the user's cache; None if the user has no home directory."""
    try:
        directory = Path(platformdirs.user_cache_dir("helixfold"))
    except RuntimeError:
        return None
    return directory if directory.is_absolute() else None  # `~` stays where nobody knows what it means
