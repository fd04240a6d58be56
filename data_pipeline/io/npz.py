"""Read untrusted or truncated `.npz` archives with bounded memory and without pickle.

`MAX_NPZ_BYTES` is the default limit on the unpacked size.
"""

import io
import math
import tokenize
import zipfile
from collections.abc import Callable, Collection
from os import PathLike
from pathlib import Path

import numpy as np

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.zip_archive import ArchiveLimits, open_archive

MAX_NPZ_BYTES = 8 * 2**30
_MAX_MEMBERS = 1000
# Alignments and templates of real proteins compress at most 50-fold, including their gaps.
_MAX_RATIO, _HARMLESS_BYTES = 300, 2**26
_MAX_HEADER_BYTES = 2**14

# Errors that NumPy raises on damaged headers, in addition to zipfile's errors.
_HEADER_ERRORS = (MemoryError, SyntaxError, tokenize.TokenError)


def read_npz(
    path: str | PathLike[str],
    max_bytes: int = MAX_NPZ_BYTES,
    *,
    names: Collection[str] | None = None,
    problem: Callable[[dict[str, np.ndarray]], str | None] = lambda _: None,
) -> dict[str, np.ndarray]:
    """Return all arrays of an `.npz` file by name, or only the arrays in `names`.

    Sizes are checked before anything is unpacked. `problem` checks the types and shapes of the returned arrays: it is
    called with placeholders of zeros that take no memory, and returns an error message or None. Missing `names` are
    left out. Raise `InputError` for a file that is not a valid `.npz`, for an archive that declares more than
    `max_bytes`, for an array that declares more data than its member has, and for the error of `problem`.
    """
    try:
        with open_archive(Path(path), _limits(max_bytes)) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            for name, member in members.items():
                if name == member.filename:
                    raise InputError.at(path, f"not a plain .npz: '{printable(name)}' is not an array")
            selected = {name: member for name, member in members.items() if names is None or name in names}
            reason = problem({name: _placeholder(archive, member) for name, member in selected.items()})
            if reason is not None:
                raise InputError.at(path, reason)
            return {name: _read_array(archive, member) for name, member in selected.items()}
    except _HEADER_ERRORS as error:
        raise InputError.at(path, f"an array is damaged ({printable(str(error))}); get the file again") from error


def npz_names(path: str | PathLike[str]) -> set[str]:
    """Return the names of the arrays in an `.npz` file without reading them; raise `InputError` for other files."""
    with open_archive(Path(path), _limits(MAX_NPZ_BYTES)) as archive:
        return {member.filename.removesuffix(".npy") for member in archive.infolist()}


def _limits(max_bytes: int) -> ArchiveLimits:
    return ArchiveLimits(
        members=_MAX_MEMBERS, unpacked_bytes=max_bytes, ratio=_MAX_RATIO, harmless_bytes=_HARMLESS_BYTES
    )


def _placeholder(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Return an array with the type and shape in a member's header, but without its data."""
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        width = {(1, 0): 2, (2, 0): 4}.get(version)
        if width is None:
            raise ValueError(f"array format {version} is unknown")
        length = stream.read(width)
        if int.from_bytes(length, "little") > _MAX_HEADER_BYTES:
            raise ValueError(f"the header of '{member.filename}' is too long")
        header = io.BytesIO(length + stream.read(int.from_bytes(length, "little")))
    read_header = np.lib.format.read_array_header_1_0 if width == 2 else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(header)
    # NumPy allocates the size in the header, so check it against the member's size first.
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"'{member.filename}' has {member.file_size} bytes, too few for {dtype} {shape}")
    if dtype.hasobject:
        raise ValueError(f"'{member.filename}' has Python objects, which are never read (allow_pickle)")
    return np.broadcast_to(np.zeros((), dtype), shape)


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)
