"""See to it that one server alone uses a data directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_pipeline.file_lock import acquire_lock
from data_pipeline.files import os_errors_as_input_errors
from helixfold.serve.storage import SERVER_LOCK, make_private


@contextmanager
def only_server(directory: Path) -> Iterator[None]:
    """Hold the lock of a data directory, which ends with this process. Raise `InputError` if another server has it."""
    make_private(directory)
    with os_errors_as_input_errors(directory, "cannot be written"):
        problem = "another server uses this directory; choose another --data directory"
        lock = acquire_lock(directory / SERVER_LOCK, problem, timeout=0, mode=0o600)
    with lock:
        yield
