"""Compress maps of residue pairs (PAE, distances) and the picture of an alignment for a page.

Each pair takes a byte. The step between values is 1/8 Å for up to 500 residues, 1/4 Å for up to 1,000, and 1/2 Å above.
Above 2,000 residues, a cell is the mean of a block of pairs. As text in the page, a map takes at most about 40 kB for
200 residues, 250 kB for 500, 800 kB for 1,000, and 2.5 MB for 2,000 or more. Good predictions have smooth maps, which
take less. `LARGEST_ERROR` is the end of the colour scale of PAE in Å.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from data_pipeline.io.npz import read_npz
from data_pipeline.residues import GAP
from helixfold.report.page import Blobs, packed
from helixfold.results.prediction import read_pae

# The unit of errors and distances, as a page shows it.
ANGSTROM = "Å"
_MAX_CELLS = 2000
_ANGSTROM_STEPS = ((500, 0.125), (1000, 0.25), (math.inf, 0.5))
_LARGEST_BYTE = 255
# AlphaFold's largest expected error in Å. Every map of errors has this scale, so that maps can be compared.
LARGEST_ERROR = 31.75
_ADVICE = "fold the target again with --overwrite"
_MAX_PICTURE_ROWS = 300


def pae_map(path: Path, length: int, blobs: Blobs) -> dict[str, Any]:
    """Return the map of predicted aligned errors in Å from a `pae_<prediction>.json` of `length` residues.

    See `_packed_map` for its format.

    Raise `InputError` if the file is damaged.
    """
    errors, _ = read_pae(path, length)
    return _packed_map(errors, blobs, title="PAE", unit=ANGSTROM, step=angstrom_step(length), largest=LARGEST_ERROR)


def distance_maps(path: Path, length: int, blobs: Blobs) -> Iterator[dict[str, Any]]:
    """Yield the maps of a `distances_<prediction>.npz`: expected distances and contact probabilities.

    See `_packed_map` for their format.

    Raise `InputError` if a matrix is not finite, or not `length` x `length`.
    """
    arrays = read_npz(path)
    for name, title, unit, step in (
        ("expected_distance", "Expected distance", ANGSTROM, angstrom_step(length)),
        ("contact_probability", "Contact probability", "", 0.01),
    ):
        matrix = arrays.get(name, np.empty(0))
        if matrix.shape != (length, length) or matrix.dtype.kind != "f" or not np.isfinite(matrix).all():
            raise InputError.at(path, f"{name} is not a matrix of {length} x {length} finite numbers; {_ADVICE}")
        # The scale of distances ends at the largest distance, and the scale of probabilities at 1.
        largest = math.ceil(float(matrix.max())) if unit else 1.0
        yield _packed_map(matrix, blobs, title=title, unit=unit, step=step, largest=largest)


def angstrom_step(length: int) -> float:
    """Return the step in Å to which distances and errors in a map of `length` residues are rounded."""
    return next(step for max_length, step in _ANGSTROM_STEPS if length <= max_length)


def alignment_picture(features: Features | ComplexFeatures, blobs: Blobs) -> dict[str, Any]:
    """Return up to 300 rows of an alignment, sorted by identity to the target and evenly sampled in that order.

    `rows` and `columns` are counts, and `identities` the identity of each row to the target, over all its columns.
    `data` has one bit for each column of each row, set where the row has a residue, compressed by `packed`.
    """
    msa = features.msa
    identities = np.array([np.mean(row == msa[0]) for row in msa])
    order = np.argsort(-identities, kind="stable")
    rows = order[np.unique(np.linspace(0, len(order) - 1, min(_MAX_PICTURE_ROWS, len(order))).round().astype(int))]
    return {
        "rows": len(rows),
        "columns": msa.shape[1],
        "identities": [round(float(identity), 3) for identity in identities[rows]],
        "data": blobs.add(packed(np.packbits(msa[rows] != GAP, axis=1).tobytes())),
    }


def _packed_map(
    matrix: Float[np.ndarray, "r r"], blobs: Blobs, *, title: str, unit: str, step: float, largest: float
) -> dict[str, Any]:
    """Return a square map in the format of a page: `cells` rows of `cells` bytes, each the value divided by `step`.

    A cell is the mean over `block` x `block` pairs of residues, and the colour scale ends at `largest`. `data` names
    the element with the bytes, compressed by `packed`.
    """
    values, block = block_means(matrix, _MAX_CELLS)
    return {
        "title": title,
        "unit": unit,
        "cells": len(values),
        "block": block,
        "step": step,
        "largest": largest,
        "data": blobs.add(packed(np.rint(values / step).clip(0, _LARGEST_BYTE).astype(np.uint8).tobytes())),
    }


def block_means(values: Float[np.ndarray, "r r"], max_blocks: int) -> tuple[Float[np.ndarray, "c c"], int]:
    """Return means over square blocks, at most `max_blocks` per row, and the number of residues along a block's side.

    If no reduction is needed, the values themselves and 1 are returned.
    """
    block = math.ceil(len(values) / max_blocks)
    if block == 1:
        return values, block
    starts = np.arange(0, len(values), block)
    sizes = np.diff(starts, append=len(values)).astype(values.dtype)
    rows = np.add.reduceat(values, starts, axis=0) / sizes[:, None]
    return np.add.reduceat(rows, starts, axis=1) / sizes, block
