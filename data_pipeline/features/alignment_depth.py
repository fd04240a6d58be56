"""Measure the depth of an MSA: its rows, its effective rows, and the rows that cover each residue.

`SAME_ROW_IDENTITY` is the fraction of equal columns from which two rows count as one effective row.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Int8, UInt64

from data_pipeline.residues import GAP

# As in Jumper et al. 2021, Methods: rows count as one if they agree in at least this fraction of the columns in which
# either row has a residue.
SAME_ROW_IDENTITY = 0.8
# A comparison covers 64 columns of two rows; this number of comparisons takes about two seconds on one core.
_MAX_COMPARISONS = 2**27
_ROWS_AT_ONCE = 8192
_LETTER_BITS = 5


@dataclass(frozen=True, kw_only=True)
class AlignmentDepth:
    """Row counts of an MSA; the target is one of the rows and covers all residues.

    A row counts as 1 / n effective rows, where n rows, including itself, are at least 80 % identical to it. `coverage`
    and `effective_coverage` count the rows and the effective rows with a residue in each column.
    """

    rows: int
    effective_rows: float  # each row counts as 1 / n, where n rows (including itself) are at least 80 % identical to it
    coverage: Int[np.ndarray, " r"]  # number of rows with a residue in each column
    effective_coverage: Float[np.ndarray, " r"]  # number of effective rows with a residue in each column


def alignment_depth(msa: Int8[np.ndarray, "n r"], most_comparisons: int = _MAX_COMPARISONS) -> AlignmentDepth:
    """Measure the depth of an MSA without duplicate rows, with the residue types of `Features`.

    Effective rows are exact up to about 5,000 rows of 300 residues. For deeper alignments, they are estimated from
    evenly spaced rows, each of which is compared with all rows. This takes at most `most_comparisons` comparisons of 64
    columns of two rows, unless one evenly spaced row needs more.
    """
    n, r = msa.shape
    present = msa != GAP
    words_per_row = -(-r // 64)
    sampled = np.unique(
        np.linspace(0, n - 1, min(n, max(1, most_comparisons // (n * words_per_row)))).round().astype(np.int64)
    )
    weights = 1 / _similar_row_counts(msa, sampled)
    return AlignmentDepth(
        rows=n,
        effective_rows=float(weights.mean() * n),
        coverage=present.sum(0),
        # The sampled rows always include the target, so this does not divide by 0.
        effective_coverage=weights @ present[sampled] / present[sampled].sum(0) * present.sum(0),
    )


def _similar_row_counts(msa: Int8[np.ndarray, "n r"], sampled: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
    """Count the rows that are at least 80 % identical to each sampled row, including itself."""
    # Pack each bit of the letters of 64 columns into one word, so a few operations compare 64 residues.
    letters = [_packed((msa >> bit) & 1) for bit in range(_LETTER_BITS)]
    residues = _packed(msa != GAP)
    counts = np.zeros(len(sampled), np.int64)
    for place, row in enumerate(sampled):
        for start in range(0, len(msa), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            differs = letters[0][:, part] ^ letters[0][:, row, None]
            for plane in letters[1:]:
                differs |= plane[:, part] ^ plane[:, row, None]
            either = np.bitwise_count(residues[:, part] | residues[:, row, None]).sum(0, dtype=np.int64)
            # Columns in which both rows have a gap do not differ, because a gap is a letter too.
            different = np.bitwise_count(differs).sum(0, dtype=np.int64)
            counts[place] += np.count_nonzero(different <= (1 - SAME_ROW_IDENTITY) * either + 1e-9)
    return counts


def _packed(flags: np.ndarray) -> UInt64[np.ndarray, "words n"]:
    """Pack one bit per column of each row into 64-bit words; the last word is padded with 0."""
    n, r = flags.shape
    padded = np.zeros((n, -(-r // 64) * 64), np.uint8)
    padded[:, :r] = flags
    return np.ascontiguousarray(np.packbits(padded, axis=1).view(np.uint64).T)
