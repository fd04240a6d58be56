"""See to it that one server alone uses a data directory."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_pipeline.errors import InputError
from data_pipeline.files import open_lock, os_errors_as_input_errors
from helixfold.serve.storage import SERVER_LOCK, make_private


@contextmanager
def only_server(directory: Path) -> Iterator[None]:
    """Hold the lock of a data directory, which ends with this process. Raise `InputError` if another server has it."""
    make_private(directory)
    with os_errors_as_input_errors(directory, "cannot be written"):
        lock = open_lock(directory / SERVER_LOCK, 0o600)
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError.at(
                directory, "another server uses this directory; choose another --data directory"
            ) from error
        yield
