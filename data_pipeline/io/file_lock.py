"""Lock files, which give one process exclusive access to a directory or a file.

`NO_LOCKS` are the error numbers of file systems without locks.
"""

import errno
from pathlib import Path

from filelock import AcquireReturnProxy, BaseFileLock, FileLock, Timeout

from data_pipeline.io.errors import InputError

# Errors of file systems without locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def acquire_lock(
    path: Path, problem: str, *, timeout: float = -1, mode: int = -1, is_singleton: bool = False
) -> AcquireReturnProxy[BaseFileLock]:
    """Lock a file until the returned context or the process ends; the file is created if it is missing.

    Wait up to `timeout` seconds for the lock (default, below 0: without limit). `mode` has the permissions of the file,
    regardless of the umask (default: the system's). With `is_singleton`, a process can acquire its own lock again.
    Raise `InputError` with `problem` for the directory if the lock is not free in time, and `OSError` if the file
    cannot be opened, is a link, or is on a file system without locks (`NO_LOCKS`).

    Killed processes leave no locks behind, and forked processes do not inherit locks.
    """
    lock: BaseFileLock = FileLock(
        path,
        timeout,
        mode=mode,
        thread_local=False,  # another thread may release the lock
        fallback_to_soft=False,  # a soft lock would survive a killed process
        is_singleton=is_singleton,
    )
    try:
        return lock.acquire()
    except Timeout as error:
        raise InputError.at(path.parent, problem) from error
