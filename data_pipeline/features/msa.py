"""Merge alignments into one MSA of residue types.

`LETTER_TYPES` has the residue type of each ASCII code: 0..19, 20 for unknown letters and 21 for a gap.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Int8, UInt8

from data_pipeline.parse.a3m import Alignment
from data_pipeline.residues import GAP, RESTYPES_WITH_X_AND_GAP, UNKNOWN

# Residue type (0..20, 21 gap) of each ASCII code, for the letters of MSA rows and templates.
LETTER_TYPES = np.full(256, UNKNOWN, np.int8)
LETTER_TYPES[np.frombuffer(RESTYPES_WITH_X_AND_GAP.encode(), np.uint8)] = np.arange(GAP + 1)
# Like HHblits, AlphaFold maps these ambiguous letters to the most similar residue.
for _letter, _similar in (("B", "D"), ("U", "C"), ("Z", "E")):
    LETTER_TYPES[ord(_letter)] = RESTYPES_WITH_X_AND_GAP.index(_similar)
_CHUNK_ROWS = 2**14  # rows copied at a time, to avoid a full copy of a deep alignment


def single_sequence(sequence: str) -> Alignment:
    """Return an alignment with the target sequence as its only row, which is named "query"."""
    letters = np.frombuffer(sequence.encode("ascii"), np.uint8)[None]
    return Alignment(names=("query",), letters=letters, deletion_matrix=np.zeros(letters.shape, np.int8))


def msa_features(alignments: Sequence[Alignment]) -> tuple[Int8[np.ndarray, "n r"], Int[np.ndarray, "n r"]]:
    """Return the MSA and the deletion matrix of the rows of all alignments in order, without duplicate sequences.

    Residue types are 0..19, 20 for unknown and 21 for gaps, as in `data_pipeline.residues`. `alignments` must not be
    empty. AlphaFold 2, Suppl. Sec. 1.2.1.
    """
    first = _first_rows(alignments)
    r = alignments[0].letters.shape[1]
    n = sum(map(len, first))
    msa = np.empty((n, r), np.int8)
    deletions = np.empty((n, r), np.result_type(*(alignment.deletion_matrix for alignment in alignments)))
    start = 0
    for alignment, rows in zip(alignments, first, strict=True):
        for chunk in np.split(rows, range(_CHUNK_ROWS, len(rows), _CHUNK_ROWS)):
            stop = start + len(chunk)
            msa[start:stop] = LETTER_TYPES[alignment.letters[chunk]]
            deletions[start:stop] = alignment.deletion_matrix[chunk]
            start = stop
    return msa, deletions


def unique_rows(alignments: Sequence[Alignment]) -> Int[np.ndarray, "n"]:
    """Return the indices, counted through all alignments, of the rows in the result of `msa_features`."""
    starts = np.cumsum([0, *(len(alignment.letters) for alignment in alignments)])
    return np.concatenate([start + rows for start, rows in zip(starts, _first_rows(alignments), strict=False)])


def _first_rows(alignments: Sequence[Alignment]) -> list[Int[np.ndarray, "m"]]:
    """Return the row indices of each alignment whose sequences do not occur earlier."""
    seen: set[bytes] = set()
    return [_new_rows(alignment.letters, seen) for alignment in alignments]


def _new_rows(letters: UInt8[np.ndarray, "n r"], seen: set[bytes]) -> Int[np.ndarray, "m"]:
    """Return the indices of the rows that are not in `seen`, and add these rows to it."""
    n, r = letters.shape
    text = np.ascontiguousarray(letters).data.cast("B")
    new = []
    for index in range(n):
        row = bytes(text[index * r : (index + 1) * r])
        if row not in seen:
            seen.add(row)
            new.append(index)
    return np.array(new, np.intp)
