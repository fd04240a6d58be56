"""Reading `.npz` archives that may be truncated, hostile or something else: no pickle, bounded memory, clear errors."""

import math
import struct
import tokenize
import zipfile
import zlib
from os import PathLike
from pathlib import Path

import numpy as np

from data_pipeline.errors import InputError, printable
from data_pipeline.files import unreadable_kind

MAX_NPZ_BYTES = 8 * 2**30

# What zipfile and NumPy raise on bytes that are no archive, or an archive whose contents were damaged.
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    MemoryError,
    RuntimeError,
    NotImplementedError,
    OverflowError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
)


def read_npz(path: str | PathLike[str], max_bytes: int = MAX_NPZ_BYTES) -> dict[str, np.ndarray]:
    """All arrays of an `.npz` file by name.

    Memory is bounded before anything is unpacked: an archive that declares more than `max_bytes`, or an array that
    declares more data than its member holds, is refused. Raises `InputError` for anything that is not such a file.
    """
    arrays: dict[str, np.ndarray] = {}
    try:
        if (problem := unreadable_kind(path)) is not None:
            raise InputError.at(path, f"cannot be read: {problem}")
        with zipfile.ZipFile(Path(path)) as archive:
            declared = sum(member.file_size for member in archive.infolist())
            if declared > max_bytes:
                raise InputError.at(path, f"it unpacks to {declared:,} bytes, and at most {max_bytes:,} are read")
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name == member.filename or name in arrays:
                    raise InputError.at(path, f"not a plain .npz: '{printable(name)}' is no array, or is there twice")
                arrays[name] = _read_array(archive, member)
    except InputError:
        raise
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.filename is not None:  # the file itself cannot be opened
            raise InputError.at(path, f"cannot be read: {error.strerror}") from error
        problem = f"not a complete .npz file ({printable(str(error))}); make or fetch it again"
        raise InputError.at(path, problem) from error
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
