"""Open zip archives from untrusted sources: features, `.npz` and `.pt` parameters are such archives.

An archive is checked by its central directory before any member is unpacked, and a directory of unusual size is
refused without reading it.
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
# Errors that zipfile raises on damaged archives and on files that are no archives.
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
# Members are read in pieces of this size at most.
CHUNK_BYTES = 2**20
# An entry of the directory takes 46 bytes, a name (DeepMind's longest has some 150) and a few fields.
_ENTRY_BYTES = 512


@dataclass(frozen=True, kw_only=True)
class ArchiveLimits:
    """Limits on an archive's declared contents; an archive that exceeds one is refused."""

    members: int  # most members
    unpacked_bytes: int = 4 * 2**30
    ratio: int = 100  # unpacked size / archive's size; beyond it, the archive counts as a zip bomb
    harmless_bytes: int = 0  # unpacked size up to which the ratio does not matter
    compressed: bool = True  # False: only uncompressed members are accepted


@contextmanager
def open_archive(path: Path, limits: ArchiveLimits) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive for reading; raise `InputError` if it is damaged, exceeds `limits`, or is no zip archive."""
    require_file(path)
    with damage_as_input_error(path), path.open("rb") as file:
        size = path.stat().st_size
        bounded = _BoundedReads(file, size, max(CHUNK_BYTES, limits.members * _ENTRY_BYTES))
        with zipfile.ZipFile(bounded) as archive:
            _check(path, archive.infolist(), size, limits)
            yield archive


@contextmanager
def damage_as_input_error(path: Path) -> Iterator[None]:
    """Convert errors that zipfile raises on damaged archives within the context to an `InputError` for `path`."""
    try:
        yield
    except InputError:
        raise
    except PermissionError as error:
        raise InputError.at(path, f"cannot be read: {error.strerror}") from error
    except DAMAGE as error:
        reason = printable(str(error) or type(error).__name__)
        raise InputError.at(path, f"is damaged, incomplete or something else ({reason}); get it again") from error


def _check(path: Path, members: list[zipfile.ZipInfo], size: int, limits: ArchiveLimits) -> None:
    if len(members) > limits.members:
        raise InputError.at(path, f"has {len(members):,} members, and at most {limits.members:,} are read")
    seen: set[str] = set()
    for member in members:
        name = printable(member.filename)
        if member.filename in seen:
            raise InputError.at(path, f"has '{name}' twice")
        seen.add(member.filename)
        stored = member.compress_type == zipfile.ZIP_STORED
        if not stored and not (limits.compressed and member.compress_type == zipfile.ZIP_DEFLATED):
            raise InputError.at(path, f"'{name}' is compressed in a way that such files never are")
        if stored and member.file_size != member.compress_size:
            raise InputError.at(path, f"'{name}' has two different sizes")
    if sum(member.compress_size for member in members) > size:
        raise InputError.at(path, "declares more data than it has: it is incomplete, or its members overlap")
    unpacked = sum(member.file_size for member in members)
    if unpacked > min(limits.unpacked_bytes, max(limits.ratio * size, limits.harmless_bytes)):
        raise InputError.at(
            path,
            f"has {size:,} bytes and would unpack to {unpacked:,}, more than {limits.unpacked_bytes:,} bytes "
            f"or {limits.ratio} times its size; no such file does",
        )


class _BoundedReads:
    """File that returns at most `limit` bytes at a time: zipfile reads as long a directory as the archive claims."""

    def __init__(self, file: BinaryIO, size: int, limit: int) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self.file, self.size, self.limit = file, size, limit

    def read(self, count: int = -1) -> bytes:
        left = self.size - self.tell()
        size = left if count < 0 else min(count, left)
        if size > self.limit:
            raise zipfile.BadZipFile("its directory is too large")
        return self.file.read(size)
