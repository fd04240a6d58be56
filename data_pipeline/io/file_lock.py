"""Lock files that keep a directory or a file for one process."""

import errno
from pathlib import Path

from filelock import AcquireReturnProxy, BaseFileLock, FileLock, Timeout

from data_pipeline.io.errors import InputError

# Errors of file systems that have no locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def acquire_lock(
    path: Path, problem: str, *, timeout: float = -1, mode: int = -1, is_singleton: bool = False
) -> AcquireReturnProxy[BaseFileLock]:
    """Lock a file, which is created if missing, until the result's context or the process ends.

    Wait `timeout` seconds for the lock of another process, by default until it is free. A `mode` is set whatever the
    umask is. With `is_singleton`, a process can acquire its own lock again. Raise `InputError` with `problem`
    for the directory if the lock is not free in time, and `OSError` if the file cannot be opened, is a link, or is on a
    file system without locks (`NO_LOCKS`).

    A killed process leaves no lock behind, and forked processes do not inherit one.
    """
    lock: BaseFileLock = FileLock(
        path,
        timeout,
        mode=mode,
        thread_local=False,  # the lock may be freed in another thread
        fallback_to_soft=False,  # a soft lock would survive a killed process
        is_singleton=is_singleton,
    )
    try:
        return lock.acquire()
    except Timeout as error:
        raise InputError.at(path.parent, problem) from error
