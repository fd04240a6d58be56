"""Write files atomically, and raise `InputError` for files that cannot be read.

`LINK_PROBLEM` is the message for a link that leads out of a closed directory.
"""

import errno
import hashlib
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from data_pipeline.io.errors import DiskFullError, InputError, error_reason

# Error numbers of a full disk and an exhausted quota, and the size of the file that is written to detect these.
_FULL_DISK_ERRORS, _PROBED_BYTES = (errno.ENOSPC, errno.EDQUOT), 1 << 20


@contextmanager
def os_errors_as_input_errors(path: str | os.PathLike[str], problem: str) -> Iterator[None]:
    """Convert an `OSError` or `ValueError` in the context to an `InputError` for `path`.

    Its text is `problem` and the reason, such as "cannot be listed: Permission denied". An `InputError` is unchanged.
    """
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        raise InputError.at(path, f"{problem}: {error_reason(error)}") from error


def require_file(path: str | os.PathLike[str]) -> None:
    """Raise `InputError` unless `path` is a regular file, because reading a pipe or a device might never end."""
    with os_errors_as_input_errors(path, "cannot be read"):
        mode = os.stat(path).st_mode
    kinds = (
        (stat.S_ISDIR, "it is a directory; pass the files in it"),
        (stat.S_ISFIFO, "it is a pipe, which cannot be read more than once; write it to a file first"),
        (stat.S_ISREG, None),
    )
    problem = next((problem for is_kind, problem in kinds if is_kind(mode)), "it is a device or socket, not a file")
    if problem is not None:
        raise InputError.at(path, f"cannot be read: {problem}")


def read_file(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Return the content of a regular file of at most `max_bytes`; raise `InputError` for others without reading.

    Of a file that grows meanwhile, the first `max_bytes` are returned.
    """
    require_file(path)
    with os_errors_as_input_errors(path, "cannot be read"), open(path, "rb", opener=_without_waiting) as file:
        if (size := os.fstat(file.fileno()).st_size) > max_bytes:
            raise InputError.at(path, f"it has {size:,} bytes; the maximum is {max_bytes:,}")
        content = file.read(size)  # not max_bytes, because Python allocates the requested size
        rest = bytearray()  # of a file that has grown, or whose size is unknown
        while piece := file.read(min(2**16, max_bytes - len(content) - len(rest))):
            rest += piece
        return content + rest if rest else content


def without_suffix(path: Path, suffixes: Iterable[str]) -> str:
    """Return a file name without the longest of the lower-case `suffixes` that it has, in upper or lower case.

    A name without one of them is returned unchanged.
    """
    suffix = max((suffix for suffix in suffixes if path.name.lower().endswith(suffix)), key=len, default="")
    return path.name[: len(path.name) - len(suffix)]


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _without_waiting(path: str, flags: int) -> int:
    """Open a file without waiting for a writer, in case it has become a pipe in the meantime."""
    return os.open(path, flags | os.O_NONBLOCK)


# Inode, modification time and size of a file, which change when the file is replaced or rewritten.
FileState = tuple[int, int, int]


def file_state(path: Path) -> FileState | None:
    """Return a file's state, to detect changes; None if it does not exist or cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def flush_to_disk(path: Path) -> None:
    """Flush a file, or the names in a directory, to the disk, so that they survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


LINK_PROBLEM = "a symbolic link leads out of the output directory; put a directory here, or choose another --output"


class MovedDirectoryError(InputError):
    """Error for a directory of `unmoved_directory` that was moved or removed while a run wrote there."""


# Directories by absolute path, with device and inode, which do not change when they are moved, and whether they are
# closed: links in a closed directory must not lead out of it.
_watched_directories: dict[str, tuple[int, int, bool]] = {}


@contextmanager
def unmoved_directory(path: Path, *, is_closed: bool = False) -> Iterator[None]:
    """Make `atomic_write` in the context raise `MovedDirectoryError` if this directory was moved or removed.

    With `is_closed`, `atomic_write` also raises `InputError` for a path that leaves the directory through a link.
    """
    status = path.stat()
    entry = (status.st_dev, status.st_ino, is_closed)
    added = {
        name: entry for name in (os.path.abspath(path), os.path.realpath(path)) if name not in _watched_directories
    }
    _watched_directories.update(added)
    try:
        yield
    finally:
        for name in added:
            del _watched_directories[name]


def require_unmoved(path: Path) -> None:
    """Raise `InputError` if `path` is in a directory of `unmoved_directory` that has moved, or leaves it by a link."""
    inside = os.path.join(os.path.abspath(path), "")
    for name, (*identity, is_closed) in _watched_directories.items():
        if inside.startswith(os.path.join(name, "")):
            try:
                status = os.stat(name)
            except FileNotFoundError:
                status = None
            if status is None or [status.st_dev, status.st_ino] != identity:
                problem = "was moved or removed while this run wrote there; move it back and run the same command again"
                raise MovedDirectoryError.at(name, problem)
            end = os.path.join(os.path.realpath(path), "")
            if is_closed and not end.startswith(os.path.join(os.path.realpath(name), "")):
                raise InputError.at(path, LINK_PROBLEM)


@contextmanager
def system_errors_naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Set the file name of system errors in the context to `path` if they have none, or the name of `temporary`.

    Raise `DiskFullError` for errors of a full disk or an exhausted quota.
    """
    try:
        yield
    except DiskFullError:
        raise
    except OSError as error:
        if error.errno is None:  # it has only a text, which a file name would replace
            raise
        if error.filename is None or (temporary is not None and os.fspath(error.filename) == os.fspath(temporary)):
            error.filename = str(path)
        if error.errno in _FULL_DISK_ERRORS:
            raise DiskFullError.at(path, error.errno) from error
        raise


@contextmanager
def atomic_write(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield the path of an empty temporary file that replaces `path` at the end, or is removed after an error.

    Both are in the same directory, which is created if it is missing. Without `sync`, a power failure may leave the
    file truncated. Raise `DiskFullError` if the disk is full, and errors of `unmoved_directory`.
    """
    require_unmoved(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    with system_errors_naming(path, temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Inside the `try`, because a signal may raise an exception as soon as the file exists.
            temporary.touch(exist_ok=False)
            permissions = temporary.stat().st_mode
            with _errors_of_libraries(path):
                yield temporary
            temporary.chmod(permissions)  # safetensors creates files that only their owner can read
            if sync:
                with temporary.open("rb+") as file:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def remove_partial_files(directories: Iterable[Path], name: str = ".+") -> None:
    """Remove temporary files of `atomic_write` from these directories, which need not exist.

    `name` is a regular expression for the final names of the files. Files that cannot be removed are ignored.
    """
    partial = re.compile(rf"\.({name})\.[0-9a-f]{{8}}\.partial")
    for directory in directories:
        # A file that cannot be removed does no harm.
        with suppress(OSError):
            for path in directory.iterdir():
                if partial.fullmatch(path.name) and not path.is_dir():
                    path.unlink()


@contextmanager
def _errors_of_libraries(path: Path) -> Iterator[None]:
    """Raise `DiskFullError` for library errors on a full disk that do not report it.

    LMDB, for example, reports "Input/output error" if only a part of its data fits.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if (isinstance(error, OSError) and error.errno is not None) or (code := _fullness(path.parent)) is None:
            raise
        raise DiskFullError.at(path, code) from error


def _fullness(directory: Path) -> int | None:
    """Return the system error number if the disk is full or a quota is exhausted, else None."""
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            for _ in range(2):  # the first write may be partial
                file.write(bytes(_PROBED_BYTES))
    except OSError as error:
        return error.errno if error.errno in _FULL_DISK_ERRORS else None
    return None
