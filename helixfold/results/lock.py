"""Lock an output directory for one run at a time.

Processes of one run share its lock, and so do runs that divide the targets. `data_pipeline.io.file_lock` locks a
directory for one process and has no shared locks.
"""

import fcntl
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from data_pipeline.io.claims import remove_claims
from data_pipeline.io.errors import InputError, error_reason, printable
from data_pipeline.io.files import unmoved_directory
from helixfold.results.file_table import LOCK, PART_LOCK

# Name of the lock file in an output directory.
LOCK_FILE = LOCK.name()
_OPEN_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK
# The last run that leaves a shared directory locks it exclusively for a moment. Other runs try again this number of
# times, after this number of seconds.
_RETRIES, _RETRY_SECONDS = 20, 0.1


@contextmanager
def locked_directory(
    output: Path, part: tuple[int, int] | None = None, *, is_shared: bool = False, has_others: bool = False
) -> Iterator[None]:
    """Create the output directory and lock it for this run. Raise `InputError` if another run holds the lock.

    The lock lasts until all processes of the run have ended: the first one passes `has_others`, and the others pass
    `is_shared`. The system releases the lock when these processes end, so a killed run leaves no lock. Runs that
    predict different parts (i, n) of the same targets share the directory, and each of them locks its own `part`. Runs
    that claim targets share the directory with `is_shared`. The last run that leaves the directory removes the claims.

    If the directory is moved, writing there raises `MovedDirectoryError`.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is a link to nothing" if output.is_symlink() and not output.exists() else error_reason(error)
        problem = f"cannot be used as output directory ({reason}); choose another with --output"
        raise InputError.at(output, problem) from error
    if not os.access(output, os.W_OK):
        raise InputError.at(output, "cannot be written; choose another --output directory")
    with ExitStack() as stack:
        file = stack.enter_context(_opened(output))
        if is_shared or part is not None:
            _lock(output, file, fcntl.LOCK_SH, _RETRIES)
        else:
            _lock(output, file, fcntl.LOCK_EX)
        if has_others:
            _lock(output, file, fcntl.LOCK_SH)
        if part is not None:
            name = PART_LOCK.name(part=part[0], parts=part[1])
            _lock(output, stack.enter_context(_opened(output, name)), fcntl.LOCK_EX)
        stack.enter_context(unmoved_directory(output, is_closed=True))
        stack.callback(_remove_claims, output, file)
        yield


@contextmanager
def only_run(output: Path, name: str = LOCK_FILE, *, waits: bool = False) -> Iterator[None]:
    """Lock the file `name` in the output directory within the context, for this process only.

    If another process holds the lock, raise `InputError`, or wait if `waits`. If the file system has no locks, nothing
    is locked.
    """
    with _opened(output, name) as file:
        if waits:
            with suppress(OSError):  # The file system has no locks.
                fcntl.flock(file, fcntl.LOCK_EX)
        else:
            _lock(output, file, fcntl.LOCK_EX)
        yield


def _remove_claims(output: Path, file: TextIO) -> None:
    """Remove the claims, unless another run still holds the lock."""
    with suppress(OSError, InputError):  # Another run has the lock, there are no locks, or the directory was moved.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_claims(output)


def _opened(output: Path, name: str = LOCK_FILE) -> TextIO:
    try:
        # The flags prevent following a link and waiting for a pipe. The caller's context closes the file.
        return open(output / name, "a+", opener=lambda path, flags: os.open(path, flags | _OPEN_FLAGS, 0o666))
    except OSError as error:
        raise InputError.at(
            output, f"cannot be written: {error_reason(error)}; choose another --output directory"
        ) from error


def _lock(output: Path, file: TextIO, kind: int, retries: int = 0) -> None:
    """Lock the file, and write the process into it if the lock is exclusive; warn if the file system has no locks."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        if retries:
            time.sleep(_RETRY_SECONDS)
            _lock(output, file, kind, retries - 1)
            return
        file.seek(0)
        holder = printable(file.readline().strip(), 100) or "another process"
        raise InputError(
            f"{output}: another run is writing there ({holder}); wait for it, or choose another --output directory"
        ) from error
    except OSError as error:
        if kind != fcntl.LOCK_EX:
            return
        reason = os.strerror(error.errno or 0)
        print(f"helixfold: {output} cannot be locked ({reason}); do not start a second run there", file=sys.stderr)
    else:
        if kind == fcntl.LOCK_EX:
            # On a full disk, the file does not name the process. `os.write` has no buffer that is flushed again later.
            with suppress(OSError):
                file.truncate(0)
                os.write(file.fileno(), f"process {os.getpid()} on {platform.node()}\n".encode())
