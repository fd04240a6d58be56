"""Write files atomically, and raise `InputError` for files that cannot be read."""

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

# What a full disk or a used-up quota is called, and how much is written to see if there is one.
_FULL, _PROBED_BYTES = (errno.ENOSPC, errno.EDQUOT), 1 << 20


@contextmanager
def os_errors_as_input_errors(path: str | os.PathLike[str], problem: str) -> Iterator[None]:
    """Convert system errors within the context to an `InputError` such as "cannot be listed: Permission denied"."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError.at(path, f"{problem}: {error_reason(error)}") from error


def require_file(path: str | os.PathLike[str]) -> None:
    """Raise `InputError` unless `path` is a regular file; reading a pipe or a device might never end."""
    with os_errors_as_input_errors(path, "cannot be read"):
        mode = os.stat(path).st_mode
    kinds = (
        (stat.S_ISDIR, "it is a directory; name the files in it"),
        (stat.S_ISFIFO, "it is a pipe, and files are read more than once; write it to a file first"),
        (stat.S_ISREG, None),
    )
    problem = next((problem for is_kind, problem in kinds if is_kind(mode)), "it is a device or socket, not a file")
    if problem is not None:
        raise InputError.at(path, f"cannot be read: {problem}")


def read_file(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Return the content of a regular file of at most `max_bytes`; raise `InputError` for any other, unread."""
    require_file(path)
    with os_errors_as_input_errors(path, "cannot be read"), open(path, "rb", opener=_without_waiting) as file:
        if (size := os.fstat(file.fileno()).st_size) > max_bytes:
            raise InputError.at(path, f"it has {size:,} bytes, and at most {max_bytes:,} are read")
        content = file.read(size)  # not max_bytes: Python allocates what it is asked for
        rest = bytearray()  # of a file that has grown, or that does not know its size
        while piece := file.read(min(2**16, max_bytes - len(content) - len(rest))):
            rest += piece
        return content + rest if rest else content


def without_suffix(path: Path, suffixes: Iterable[str]) -> str:
    """Return a file's name without the longest of these suffixes that it has, in any case."""
    suffix = max((suffix for suffix in suffixes if path.name.lower().endswith(suffix)), key=len, default="")
    return path.name[: len(path.name) - len(suffix)]


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _without_waiting(path: str, flags: int) -> int:
    """Open a file, also one that has become a pipe meanwhile, without waiting for whoever writes into it."""
    return os.open(path, flags | os.O_NONBLOCK)


LINK_PROBLEM = "a symbolic link leads out of the output directory; put a directory here, or choose another --output"


class MovedDirectoryError(InputError):
    """Error for a directory that was moved or removed while a run wrote there."""


# Directories by their absolute paths, with device and inode, which moving does not change, and whether they are closed:
# links in a closed directory must not lead out of it.
_unmoved: dict[str, tuple[int, int, bool]] = {}


@contextmanager
def unmoved_directory(path: Path, *, is_closed: bool = False) -> Iterator[None]:
    """Within the context, `atomic_write` raises `MovedDirectoryError` below this directory once it is moved or removed.

    With `is_closed`, `atomic_write` also raises `InputError` for a path that leaves the directory through a link.
    """
    status = path.stat()
    entry = (status.st_dev, status.st_ino, is_closed)
    added = {name: entry for name in (os.path.abspath(path), os.path.realpath(path)) if name not in _unmoved}
    _unmoved.update(added)
    try:
        yield
    finally:
        for name in added:
            del _unmoved[name]


def require_unmoved(path: Path) -> None:
    """Raise `InputError` if `path` is in a directory of `unmoved_directory` that is gone, or leaves it by a link."""
    inside = os.path.join(os.path.abspath(path), "")
    for name, (*identity, is_closed) in _unmoved.items():
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
    """Name the file that is written in system errors within the context that name none, or a temporary file.

    Raise `DiskFullError` for those of a full disk.
    """
    try:
        yield
    except DiskFullError:
        raise
    except OSError as error:
        if error.errno is None:  # it has a text alone, which it would lose with a file's name
            raise
        if error.filename is None or (temporary is not None and os.fspath(error.filename) == os.fspath(temporary)):
            error.filename = str(path)
        if error.errno in _FULL:
            raise DiskFullError.at(path, error.errno) from error
        raise


@contextmanager
def atomic_write(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a new file beside `path` to write to; it replaces `path` at the end, or is removed after an error.

    Without `sync`, a power failure may leave the file truncated.
    """
    require_unmoved(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    with system_errors_naming(path, temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Inside, since a signal may raise an exception as soon as the file is there.
            temporary.touch(exist_ok=False)
            permissions = temporary.stat().st_mode
            with _errors_of_libraries(path):
                yield temporary
            temporary.chmod(permissions)  # safetensors makes its files readable by their owner only
            if sync:
                with temporary.open("rb+") as file:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def remove_partial_files(directories: Iterable[Path], name: str = ".+") -> None:
    """Remove files that a killed run had not finished writing in these directories, which need not exist.

    `name` is a regular expression of the names that the files would have had.
    """
    partial = re.compile(rf"\.({name})\.[0-9a-f]{{8}}\.partial")
    for directory in directories:
        # What cannot be removed harms nobody.
        with suppress(OSError):
            for path in directory.iterdir():
                if partial.fullmatch(path.name) and not path.is_dir():
                    path.unlink()


@contextmanager
def _errors_of_libraries(path: Path) -> Iterator[None]:
    """Raise `DiskFullError` for an error that does not say that the disk is full.

    LMDB, for one, says "Input/output error" if a part of what it writes fits.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if (isinstance(error, OSError) and error.errno is not None) or (number := _fullness(path.parent)) is None:
            raise
        raise DiskFullError.at(path, number) from error


def _fullness(directory: Path) -> int | None:
    """Return the number of the system error by which a disk, or a quota, takes no more; None if it does take more."""
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            for _ in range(2):  # the first may be written in part
                file.write(bytes(_PROBED_BYTES))
    except OSError as error:
        return error.errno if error.errno in _FULL else None
    return None
