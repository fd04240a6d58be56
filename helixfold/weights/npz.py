"""Read and write `.npz` files of floating-point arrays, without pickle and with checked headers.

`LIMITS`, `MAX_AXES` and `MAX_HEADER_BYTES` are limits of a parameter file, an array and its header.
"""

import math
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import atomic_write
from data_pipeline.io.zip_archive import ArchiveLimits, damage_as_input_error, open_archive

# DeepMind's files have 265 to 400 arrays of up to four axes, together 373 MB.
LIMITS = ArchiveLimits(members=2000)
MAX_AXES = 8
MAX_HEADER_BYTES = 4096
# Header of the .npy format (NumPy Enhancement Proposal 1): a Python dictionary with these three keys, sorted. It is
# matched and never evaluated.
_HEADER = re.compile(
    r"\{\s*'descr':\s*'(?P<descr>[^']{1,16})',\s*'fortran_order':\s*(?:True|False),"
    r"\s*'shape':\s*\((?P<shape>[\d,\s]*)\),?\s*\}\s*"
)
_FLOAT_TYPE = re.compile(r"[<>=|]?f[248]")


@contextmanager
def open_npz(path: str | os.PathLike[str], limits: ArchiveLimits = LIMITS) -> Iterator["NpzArrays"]:
    """Open an `.npz` file and check the headers of its arrays.

    Raise `InputError` if it is not an intact archive of floating-point arrays, also when an array is looked up later.
    """
    with open_archive(Path(path), limits) as archive:
        yield NpzArrays(Path(path), archive)


class NpzArrays(Mapping[str, np.ndarray]):
    """Arrays of an open `.npz` file. An array is read when it is looked up; `shapes` are read from the headers.

    Arrays are converted to float32 in C order and native byte order. Looking up an array with infinite or NaN values
    raises `InputError`; see `values_of` for such arrays.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._archive = path, archive
        self._members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        self.shapes = {name: self._shape(member) for name, member in self._members.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, name: str) -> np.ndarray:
        values = self.values_of(name)
        if not np.isfinite(values).all():
            raise InputError.at(self.path, f"array '{printable(name)}' has values that are not finite float32 numbers")
        return values

    def values_of(self, name: str) -> np.ndarray:
        """Return an array as float32; values may be infinite or NaN, and too large ones become infinite."""
        with damage_as_input_error(self.path), self._archive.open(self._members[name]) as stream:
            values = np.lib.format.read_array(stream, allow_pickle=False)
        with np.errstate(over="ignore"):  # numbers that are too large become infinite
            return np.ascontiguousarray(values.astype(np.float32, copy=False))

    def _shape(self, member: zipfile.ZipInfo) -> tuple[int, ...]:
        """Return the shape in the header of an array, after comparing it with the size of the archive member."""
        name = printable(member.filename)
        if not member.filename.endswith(".npy"):
            raise InputError.at(self.path, f"'{name}' is not an array, so this is not a plain .npz file")
        with damage_as_input_error(self.path), self._archive.open(member) as stream:
            start = stream.read(8)
            # The length of the header has two bytes in format 1, and four in formats 2 and 3.
            width = {b"\x93NUMPY\x01": 2, b"\x93NUMPY\x02": 4, b"\x93NUMPY\x03": 4}.get(start[:7])
            if width is None:
                raise InputError.at(self.path, f"'{name}' does not start like a NumPy array")
            length = int.from_bytes(stream.read(width), "little")
            if length > MAX_HEADER_BYTES:
                problem = f"has a header of {length:,} bytes; expected at most {MAX_HEADER_BYTES:,}"
                raise InputError.at(self.path, f"'{name}' {problem}")
            header = _HEADER.fullmatch(stream.read(length).decode("latin1"))
        if header is None:
            raise InputError.at(self.path, f"'{name}' is not a plain array of numbers")
        if not _FLOAT_TYPE.fullmatch(header["descr"]):
            kind = "Python objects, which are never read" if "O" in header["descr"] else printable(header["descr"])
            raise InputError.at(self.path, f"'{name}' holds {kind}; parameters are floating-point numbers")
        shape = tuple(int(size) for size in header["shape"].replace(",", " ").split())
        if len(shape) > MAX_AXES or 0 in shape:
            raise InputError.at(self.path, f"'{name}' has the shape {list(shape)[:MAX_AXES]}, which no parameter has")
        declared = math.prod(shape) * np.dtype(header["descr"]).itemsize
        actual = member.file_size - len(start) - width - length
        if declared != actual:
            raise InputError.at(self.path, f"'{name}' declares {declared:,} bytes of numbers, got {actual:,}")
        return shape


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name as an uncompressed `.npz`, atomically."""
    with atomic_write(Path(path)) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
