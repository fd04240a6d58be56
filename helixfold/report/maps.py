"""Make square maps of a prediction (PAE, distances) and the picture of its alignment small enough for a page.

Each pair takes a byte. The step between values is 1/8 Angstrom for up to 500 residues, 1/4 for up to 1,000, and 1/2
above. Above 2,000 residues, a cell is the mean of a block of pairs. As text in the page, a map takes at most about 40
kB for 200 residues, 250 kB for 500, 800 kB for 1,000 and 2.5 MB for 2,000 or more; good predictions have smooth maps
and take less.
"""

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Float

from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from data_pipeline.io.npz import read_npz
from data_pipeline.residues import GAP
from helixfold.report.page import packed

ANGSTROM = "Å"
_MOST_CELLS = 2000
_ANGSTROM_STEPS = ((500, 0.125), (1000, 0.25), (math.inf, 0.5))
_LARGEST_BYTE = 255
# AlphaFold's largest expected error; every map of errors has this scale, so that pages and pictures can be compared.
LARGEST_ERROR = 31.75
_AGAIN = "fold the target again with --overwrite"
_PICTURE_ROWS = 300
_CHUNK = 2**20
_NUMBER_BYTES = 32  # of the text of one, in any program's file


@dataclass(frozen=True, kw_only=True)
class PackedMap:
    """A square map as a page holds it: `cells` rows of `cells` bytes, each the value divided by `step`.

    A cell is the mean over `block` x `block` pairs of residues. `data` are the bytes in zlib's format and base64.
    """

    title: str
    unit: str
    cells: int
    block: int
    step: float
    largest: float  # where the colour scale ends
    data: str


@dataclass(frozen=True, kw_only=True)
class PackedAlignment:
    """Some rows of an alignment as a page holds them, those most like the target first.

    `data` has one bit for each column of each row, set where the row has a residue, in zlib's format and base64.
    """

    rows: int
    columns: int
    identities: tuple[float, ...]  # of each row to the target, over all its columns
    data: str


def pae_map(path: Path, length: int) -> PackedMap:
    """Return the predicted aligned error of a `pae_<prediction>.json` of `length` residues, as a map in Angstrom.

    The file is read row by row, because all of it can fill memory. Raise `InputError` if it is damaged.
    """
    with path.open("rb") as file:
        rows, step = _pae_rows(path, file, length), angstrom_step(length)
        return _packed_map(rows, length, title="PAE", unit=ANGSTROM, step=step, largest=LARGEST_ERROR)


def distance_maps(path: Path, length: int) -> Iterator[PackedMap]:
    """Yield the maps of a `distances_<prediction>.npz`: expected distances and probabilities of contacts.

    Raise `InputError` if a matrix is not finite, or not `length` x `length`.
    """
    arrays = read_npz(path)
    for name, title, unit, step in (
        ("expected_distance", "Expected distance", ANGSTROM, angstrom_step(length)),
        ("contact_probability", "Contact probability", "", 0.01),
    ):
        matrix = arrays.get(name, np.empty(0))
        if matrix.shape != (length, length) or matrix.dtype.kind != "f" or not np.isfinite(matrix).all():
            raise InputError.at(path, f"{name} is not {length} x {length} numbers; {_AGAIN}")
        # The scale of distances ends at the largest one, and that of probabilities at 1.
        largest = math.ceil(float(matrix.max())) if unit else 1.0
        yield _packed_map(matrix, length, title=title, unit=unit, step=step, largest=largest)


def angstrom_step(length: int) -> float:
    """Return the step in Angstrom to which distances of a chain of `length` residues are rounded."""
    return next(step for most, step in _ANGSTROM_STEPS if length <= most)


def alignment_picture(features: Features | ComplexFeatures) -> PackedAlignment:
    """Return at most 300 rows of an alignment, evenly chosen and sorted by their identity to the target."""
    msa = features.msa
    identities = np.array([np.mean(row == msa[0]) for row in msa])
    order = np.argsort(-identities, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(_PICTURE_ROWS, len(order))).round().astype(int))]
    return PackedAlignment(
        rows=len(chosen),
        columns=msa.shape[1],
        identities=tuple(round(float(identity), 3) for identity in identities[chosen]),
        data=packed(np.packbits(msa[chosen] != GAP, axis=1).tobytes()),
    )


def _packed_map(
    rows: Iterable[Float[np.ndarray, "r"]], length: int, *, title: str, unit: str, step: float, largest: float
) -> PackedMap:
    block = math.ceil(length / _MOST_CELLS)
    values = np.stack(list(_blocks(rows, length, block)))
    return PackedMap(
        title=title,
        unit=unit,
        cells=len(values),
        block=block,
        step=step,
        largest=largest,
        data=packed(np.rint(values / step).clip(0, _LARGEST_BYTE).astype(np.uint8).tobytes()),
    )


def _blocks(rows: Iterable[Float[np.ndarray, "r"]], length: int, block: int) -> Iterator[Float[np.ndarray, "c"]]:
    """Yield means over square blocks, one row of blocks at a time."""
    starts = np.arange(0, length, block)
    sizes = np.diff(starts, append=length)
    each = iter(rows)
    while some := list(itertools.islice(each, block)):
        yield np.add.reduceat(np.mean(some, axis=0, dtype=np.float64), starts) / sizes


def _pae_rows(path: Path, file: BinaryIO, length: int) -> Iterator[Float[np.ndarray, "r"]]:
    """Yield the rows of the matrix in an open PAE file, with a MiB of the file in memory at a time."""
    pieces = _until_brackets(file, _CHUNK + _NUMBER_BYTES * length)
    for number in range(1, length + 1):
        row = np.empty(0)
        with contextlib.suppress(ValueError):
            row = np.array(next(pieces, b"").rpartition(b"[")[2].split(b","), dtype=np.float64)
        if row.shape != (length,) or not (np.isfinite(row).all() and row.min() >= 0):
            raise InputError.at(path, f"row {number} of the PAE is not {length} numbers; {_AGAIN}")
        yield row


def _until_brackets(file: BinaryIO, most: int) -> Iterator[bytes]:
    """Yield the bytes before each closing bracket, until there are more than `most` before one."""
    rest = b""
    while len(rest) <= most and (chunk := file.read(_CHUNK)):
        *complete, rest = (rest + chunk).split(b"]")
        yield from complete
