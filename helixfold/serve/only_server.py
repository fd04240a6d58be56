"""See to it that one server alone uses a data directory."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_pipeline.errors import InputError
from data_pipeline.files import open_lock, os_errors_as_input_errors

_LOCK_FILE = "server.lock"


@contextmanager
def only_server(directory: Path) -> Iterator[None]:
    """Hold the lock of a data directory, which ends with this process. Raise `InputError` if another server has it."""
    with os_errors_as_input_errors(directory, "cannot be written"):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = open_lock(directory / _LOCK_FILE)
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError.at(directory, "another server uses it; choose another --data directory") from error
        yield
