"""Open untrusted zip archives, such as features and parameters in `.npz` and `.pt` files.

The central directory of an archive is checked before any member is unpacked. A directory of unusual size is an error,
and is not read. `DAMAGE` are the types of errors for damaged archives, and `CHUNK_BYTES` is the max size of a single
read from a member.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import require_file

Archive: TypeAlias = zipfile.ZipFile
Member: TypeAlias = zipfile.ZipInfo
# Errors that zipfile raises on damaged archives and on files that are not archives.
DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    OverflowError,
    RuntimeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
# Max size of a single read from a member.
CHUNK_BYTES = 2**20
# An entry of the directory has 46 bytes, a name (up to about 150 bytes in DeepMind's files) and a few fields.
_ENTRY_BYTES = 512


@dataclass(frozen=True, kw_only=True)
class ArchiveLimits:
    """Limits on the declared content of an archive; archives beyond a limit are errors.

    `members` is the max number of members, and `unpacked_bytes` their max size. `ratio` is the max unpacked size per
    byte of the archive, which is ignored up to `harmless_bytes` of unpacked size. If not `compressed`, only
    uncompressed members are accepted.
    """

    members: int  # max number of members
    unpacked_bytes: int = 4 * 2**30
    ratio: int = 100  # unpacked size / archive size; archives with a higher ratio count as zip bombs
    harmless_bytes: int = 0  # unpacked size up to which the ratio is ignored
    compressed: bool = True  # False: only uncompressed members are accepted


@contextmanager
def open_archive(path: Path, limits: ArchiveLimits) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive for reading; raise `InputError` if it is invalid, damaged or exceeds `limits`.

    Damage that is found later in the context raises `InputError` too.
    """
    require_file(path)
    with damage_as_input_error(path), path.open("rb") as file:
        size = path.stat().st_size
        bounded = _BoundedReads(file, size, max(CHUNK_BYTES, limits.members * _ENTRY_BYTES))
        with zipfile.ZipFile(bounded) as archive:
            _check(path, archive.infolist(), size, limits)
            yield archive


@contextmanager
def damage_as_input_error(path: Path) -> Iterator[None]:
    """Convert errors of zipfile on damaged archives in the context to an `InputError` for `path`."""
    try:
        yield
    except InputError:
        raise
    except PermissionError as error:
        raise InputError.at(path, f"cannot be read: {error.strerror}") from error
    except DAMAGE as error:
        reason = printable(str(error) or type(error).__name__)
        raise InputError.at(path, f"is damaged, incomplete or not a zip archive ({reason}); get it again") from error


def _check(path: Path, members: list[zipfile.ZipInfo], size: int, limits: ArchiveLimits) -> None:
    """Raise `InputError` if the members are unsupported or exceed `limits`. `size` is the archive's size in bytes."""
    if len(members) > limits.members:
        raise InputError.at(path, f"has {len(members):,} members; the maximum is {limits.members:,}")
    seen: set[str] = set()
    for member in members:
        name = printable(member.filename)
        if member.filename in seen:
            raise InputError.at(path, f"has '{name}' twice")
        seen.add(member.filename)
        stored = member.compress_type == zipfile.ZIP_STORED
        if not stored and not (limits.compressed and member.compress_type == zipfile.ZIP_DEFLATED):
            raise InputError.at(path, f"'{name}' has an unsupported compression")
        if stored and member.file_size != member.compress_size:
            raise InputError.at(path, f"'{name}' has two different sizes")
    if sum(member.compress_size for member in members) > size:
        raise InputError.at(path, "declares more data than it has: it is incomplete, or its members overlap")
    unpacked = sum(member.file_size for member in members)
    if unpacked > min(limits.unpacked_bytes, max(limits.ratio * size, limits.harmless_bytes)):
        raise InputError.at(
            path,
            f"has {size:,} bytes and would unpack to {unpacked:,}, more than {limits.unpacked_bytes:,} bytes "
            f"or {limits.ratio} times its size; is it a zip bomb?",
        )


class _BoundedReads:
    """File that limits a read to `limit` bytes, because zipfile reads a directory of any declared size."""

    def __init__(self, file: BinaryIO, size: int, limit: int) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self.file, self.size, self.limit = file, size, limit

    def read(self, count: int = -1) -> bytes:
        left = self.size - self.tell()
        size = left if count < 0 else min(count, left)
        if size > self.limit:
            raise zipfile.BadZipFile("its directory is too large")
        return self.file.read(size)
