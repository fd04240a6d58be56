"""Measure the depth of an MSA: count its rows, its independent rows, and the rows that cover each residue."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Int8, UInt64

from data_pipeline.residues import GAP

# As AlphaFold's authors measure depth (Jumper et al. 2021, Methods): rows count as one if they agree in at least this
# fraction of the columns in which either has a residue.
SAME_ROW_IDENTITY = 0.8
# A comparison is one of 64 columns of two rows; this many take about two seconds on one core.
_MOST_COMPARISONS = 2**27
_ROWS_AT_ONCE = 8192
_LETTER_BITS = 5


@dataclass(frozen=True, kw_only=True)
class AlignmentDepth:
    """Numbers of rows of an MSA; the target itself is one of the rows and covers every residue."""

    rows: int
    effective_rows: float  # each row counts as 1 / n, n rows (with itself) being 80 % identical to it
    coverage: Int[np.ndarray, " r"]  # number of rows with a residue in each column
    effective_coverage: Float[np.ndarray, " r"]  # number of effective rows with a residue in each column


def alignment_depth(msa: Int8[np.ndarray, "n r"], most_comparisons: int = _MOST_COMPARISONS) -> AlignmentDepth:
    """Count the rows of an MSA that has no duplicate rows and the residue types of `Features`.

    Effective rows are exact up to about 5,000 rows of 300 residues. In a deeper alignment they are estimated from
    evenly spaced rows, as many as can be compared with all others in `most_comparisons` comparisons of 64 columns.
    """
    n, r = msa.shape
    present = msa != GAP
    words = -(-r // 64)
    chosen = np.unique(np.linspace(0, n - 1, min(n, max(1, most_comparisons // (n * words)))).round().astype(np.int64))
    weights = 1 / _alike(msa, chosen)
    return AlignmentDepth(
        rows=n,
        effective_rows=float(weights.mean() * n),
        coverage=present.sum(0),
        # The target is always among the chosen rows, so that nothing is divided by 0.
        effective_coverage=weights @ present[chosen] / present[chosen].sum(0) * present.sum(0),
    )


def _alike(msa: Int8[np.ndarray, "n r"], chosen: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
    """Count for each chosen row the rows, itself included, that are at least 80 % identical to it."""
    # Pack each bit of the letters of 64 columns into one word: a few operations then compare 64 residues.
    letters = [_packed((msa >> bit) & 1) for bit in range(_LETTER_BITS)]
    residues = _packed(msa != GAP)
    found = np.zeros(len(chosen), np.int64)
    for place, row in enumerate(chosen):
        for start in range(0, len(msa), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            differs = letters[0][:, part] ^ letters[0][:, row, None]
            for plane in letters[1:]:
                differs |= plane[:, part] ^ plane[:, row, None]
            either = np.bitwise_count(residues[:, part] | residues[:, row, None]).sum(0, dtype=np.int64)
            # Columns in which both rows have a gap do not differ, since a gap is a letter too.
            different = np.bitwise_count(differs).sum(0, dtype=np.int64)
            found[place] += np.count_nonzero(different <= (1 - SAME_ROW_IDENTITY) * either + 1e-9)
    return found


def _packed(flags: np.ndarray) -> UInt64[np.ndarray, "words n"]:
    """Pack one bit per column of each row into 64-bit words; columns that fill up the last word are 0 in all rows."""
    n, r = flags.shape
    padded = np.zeros((n, -(-r // 64) * 64), np.uint8)
    padded[:, :r] = flags
    return np.ascontiguousarray(np.packbits(padded, axis=1).view(np.uint64).T)
