"""Reading `.npz` archives that may be truncated, hostile or something else: no pickle, bounded memory, clear errors."""

import math
import tokenize
import zipfile
from collections.abc import Collection
from os import PathLike
from pathlib import Path

import numpy as np

from data_pipeline.archive import Limits, open_archive
from data_pipeline.errors import InputError, printable

MAX_NPZ_BYTES = 8 * 2**30
_MAX_MEMBERS = 1000
# Alignments and templates of real proteins, with all their gaps, shrink to a fiftieth at most.
_RATIO, _HARMLESS_BYTES = 300, 2**26

# What NumPy raises on the headers of arrays, beside what archives do.
_NO_HEADER = (MemoryError, SyntaxError, tokenize.TokenError)


def read_npz(
    path: str | PathLike[str], max_bytes: int = MAX_NPZ_BYTES, names: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """All arrays of an `.npz` file by name, or those of these names.

    Memory is bounded before anything is unpacked: an archive that declares more than `max_bytes`, or an array that
    declares more data than its member holds, is refused. Raises `InputError` for anything that is not such a file.
    """
    arrays: dict[str, np.ndarray] = {}
    limits = Limits(members=_MAX_MEMBERS, unpacked_bytes=max_bytes, ratio=_RATIO, harmless_bytes=_HARMLESS_BYTES)
    try:
        with open_archive(Path(path), limits) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name == member.filename:
                    raise InputError.at(path, f"not a plain .npz: '{printable(name)}' is no array")
                if names is None or name in names:
                    arrays[name] = _read_array(archive, member)
    except _NO_HEADER as error:
        raise InputError.at(
            path, f"an array's header is damaged ({printable(str(error))}); get the file again"
        ) from error
    return arrays


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise ValueError(f"array format {version} is unknown")
    # NumPy allocates what the header asks for, so the header must not ask for more than there is.
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"'{member.filename}' holds {member.file_size} bytes, too few for {dtype} {shape}")
    with archive.open(member) as stream:
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
    return array
