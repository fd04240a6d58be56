"""Where a store is being built: finished pieces that survive a killed run, and one run at a time.

A piece (a chain's record, or what is known of a structure file) is filed under the hash of everything that it was
made from. So a piece that exists is the right one, whoever made it, and nothing is made twice.
"""

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_pipeline.datasets.store import DATABASE_FILE, open_database, write_database
from data_pipeline.errors import InputError
from data_pipeline.files import os_errors_as_input_errors

WORK_DIRECTORY, LOCK_FILE = "work", ".lock"

_KEY_BYTES = 16


def content_key(*parts: object) -> str:
    """The hash of a list of words and numbers (and lists of them), as 32 hexadecimal digits."""
    return hashlib.blake2b(json.dumps(parts, separators=(",", ":")).encode(), digest_size=_KEY_BYTES).hexdigest()


def file_digest(path: Path) -> str:
    """The hash of a file's content as it lies there; packed and unpacked files of equal text differ."""
    with os_errors_as_input_errors(path, "cannot be read"), path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_KEY_BYTES)).hexdigest()


class BuildCache:
    """The pieces of one store: new ones lie as files in its work directory, older ones in its database."""

    def __init__(self, store: Path) -> None:
        self._work = store / WORK_DIRECTORY
        self._path = store / DATABASE_FILE
        self._database = open_database(self._path) if self._path.is_file() else None

    def get(self, key: str) -> bytes | None:
        """A finished piece, or None."""
        try:
            return self._file(key).read_bytes()
        except FileNotFoundError:
            return self._packed(key)

    def put(self, key: str, content: bytes) -> None:
        """Keep a finished piece.

        Unlike other files it is not synced to the disk, which would take most of the time: pieces are checked when
        they are read, and one that a power failure cut is made again.
        """
        file = self._file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{key}.{secrets.token_hex(4)}.partial")
        try:
            temporary.write_bytes(content)
            os.replace(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)

    def size(self, key: str) -> int:
        """The size of a finished piece."""
        try:
            return self._file(key).stat().st_size
        except FileNotFoundError:
            return len(self._packed(key) or b"")

    def pack(self, keys: list[str]) -> None:
        """Make the database of these pieces, in ascending order, and of no others; they must be finished."""
        if self._database is None or self._database.keys() != keys or any(self._file(key).is_file() for key in keys):
            write_database(self._path, ((key, self.get(key) or b"") for key in keys), map(self.size, keys))

    def clear(self) -> None:
        """Remove the work directory, when all is packed."""
        shutil.rmtree(self._work, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what killed runs left half written."""
        for partial in (*self._work.glob("*/.*.partial"), *self._path.parent.glob(".*.partial")):
            partial.unlink(missing_ok=True)

    def _packed(self, key: str) -> bytes | None:
        if self._database is None:
            return None
        with self._database.record(key) as content:
            return None if content is None else bytes(content)

    def _file(self, key: str) -> Path:
        return self._work / key[:2] / key


def compress_json(values: object) -> bytes:
    """A small piece of words and numbers; equal values give equal bytes."""
    return zlib.compress(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


def decompress_json(content: bytes) -> Any:
    """What `compress_json` packed; zlib's checksum finds damage, which is a `ValueError`."""
    try:
        return json.loads(zlib.decompress(content))
    except zlib.error as error:
        raise ValueError("damaged") from error


@contextmanager
def store_lock(store: Path) -> Iterator[None]:
    """Keep other runs off a store; the system drops the lock when this process ends, however it ends."""
    with os_errors_as_input_errors(store, "cannot be used as a feature store"):
        store.mkdir(parents=True, exist_ok=True)
        file = (store / LOCK_FILE).open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError.at(
                store, "another run is building this feature store; wait for it, or choose another --output"
            ) from error
        except OSError as error:
            raise InputError.at(
                store,
                f"the directory cannot be locked: {os.strerror(error.errno or 0)}; build on another file system",
            ) from error
        yield
