"""Cache of results while a feature store is built, and the lock that allows one run at a time.

A result (the record of a chain, the summary of a structure file, or the clusters) is stored under the hash of all its
inputs. It survives a killed run, and an existing key always has the correct content, so nothing is computed twice.
`WORK_DIRECTORY` and `LOCK_FILE` are names in the directory of a store.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_pipeline.io.errors import InputError, error_reason
from data_pipeline.io.file_lock import NO_LOCKS, acquire_lock
from data_pipeline.io.files import atomic_write, os_errors_as_input_errors, read_file, unmoved_directory
from data_pipeline.training_sets.database import Database
from data_pipeline.training_sets.store import DATABASE_FILE, write_database

WORK_DIRECTORY, LOCK_FILE = "work", ".lock"

_KEY_BYTES = 16
_MAX_RECORD_BYTES = 4 * 2**30


def content_key(*parts: object) -> str:
    """Return the hash of values that JSON can hold (strings, numbers, None, nested lists) as 32 hexadecimal digits."""
    return hashlib.blake2b(json.dumps(parts, separators=(",", ":")).encode(), digest_size=_KEY_BYTES).hexdigest()


def file_digest(path: Path) -> str:
    """Return the hash of a file's bytes as 32 hexadecimal digits; raise `InputError` if it cannot be read.

    A gzip file is not decompressed, so its hash differs from the hash of the plain file.
    """
    with os_errors_as_input_errors(path, "cannot be read"), path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_KEY_BYTES)).hexdigest()


class BuildCache:
    """Cached results of one store by key: new results in files of its work directory, packed ones in its database."""

    def __init__(self, store: Path) -> None:
        self._work = store / WORK_DIRECTORY
        self._path = store / DATABASE_FILE
        self._database = Database(self._path) if self._path.is_file() else None

    def get(self, key: str) -> bytes | None:
        """Return the content of a cached result, or None if the key does not exist."""
        file = self._file(key)
        return read_file(file, _MAX_RECORD_BYTES) if os.path.lexists(file) else self._packed(key)

    def put(self, key: str, content: bytes) -> None:
        """Store a result under its key.

        It is not synced to disk, because syncing would take most of the time. Results are checked when they are read,
        and results truncated by a power failure are computed again.
        """
        with atomic_write(self._file(key), sync=False) as temporary:
            temporary.write_bytes(content)

    def size(self, key: str) -> int:
        """Return the size of a cached result in bytes, or 0 if the key does not exist."""
        try:
            return self._file(key).stat().st_size
        except FileNotFoundError:
            return len(self._packed(key) or b"")

    def pack(self, keys: list[str]) -> None:
        """Write the database with exactly the results of `keys`, which must be sorted and in the cache.

        A database that already has exactly these, without newer results in the work directory, is not written.
        """
        if self._database is None or self._database.keys() != keys or any(self._file(key).is_file() for key in keys):
            write_database(self._path, ((key, self.get(key) or b"") for key in keys), map(self.size, keys))

    def clear(self) -> None:
        """Remove the work directory; call it after `pack`."""
        shutil.rmtree(self._work, ignore_errors=True)

    def sweep(self) -> None:
        """Remove partial files of killed runs from the store and its work directory; results remain."""
        for partial in (*self._work.glob("*/.*.partial"), *self._path.parent.glob(".*.partial")):
            partial.unlink(missing_ok=True)

    def _packed(self, key: str) -> bytes | None:
        """Return the record of a key in the finished store, or None."""
        if self._database is None:
            return None
        content = self._database.get(key)
        return None if content is None else bytes(content)

    def _file(self, key: str) -> Path:
        """Return the path of a key's file in the working directory."""
        return self._work / key[:2] / key


@contextmanager
def store_lock(store: Path) -> Iterator[None]:
    """Hold an exclusive lock on a store directory, created if missing; raise `InputError` if another run has the lock.

    The operating system releases the lock when the process ends, even if it is killed.
    """
    problem = "another run is building this feature store; wait for it, or choose another --output"
    with os_errors_as_input_errors(store, "cannot be used as a feature store"):
        store.mkdir(parents=True, exist_ok=True)
        try:
            lock = acquire_lock(store / LOCK_FILE, problem, timeout=0)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            problem = f"the directory cannot be locked: {error_reason(error)}; build on another file system"
            raise InputError.at(store, problem) from error
    with lock, unmoved_directory(store):
        yield
