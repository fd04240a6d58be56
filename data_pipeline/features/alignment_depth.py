"""How much an alignment knows: its rows, how many of them are independent, and how many cover each residue."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Int8, UInt64

from data_pipeline.residues import GAP

# As AlphaFold's authors measure depth (Jumper et al. 2021, Methods): rows that share at least this part of the residues
# that either of them has count as one.
SAME_ROW_IDENTITY = 0.8
# Comparisons of 64 columns of two rows: about two seconds of one core.
_MOST_COMPARISONS = 2**27
_ROWS_AT_ONCE = 8192
_LETTER_BITS = 5


@dataclass(frozen=True, kw_only=True)
class AlignmentDepth:
    """The target itself is one of the rows and covers every residue."""

    rows: int
    effective_rows: float  # each row counts as one by the number of rows that are 80 % identical to it, itself included
    coverage: Int[np.ndarray, " r"]  # rows that have a residue at each position
    effective_coverage: Float[np.ndarray, " r"]  # the same of effective rows


def alignment_depth(msa: Int8[np.ndarray, "n r"], most_comparisons: int = _MOST_COMPARISONS) -> AlignmentDepth:
    """Count the rows of an MSA without duplicates (residue types as in `Features`).

    Effective rows are exact up to about 5,000 rows of 300 residues. Of a deeper alignment, as many rows as can be
    compared with all others in seconds are chosen evenly, and stand for the rest.
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
        # The target is always among the chosen, so that none is divided by 0.
        effective_coverage=weights @ present[chosen] / present[chosen].sum(0) * present.sum(0),
    )


def _alike(msa: Int8[np.ndarray, "n r"], chosen: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
    """How many rows are the same as each of the chosen ones but for a fifth of their residues; itself included."""
    # The bits of all letters of a row, 64 columns to a word: a handful of operations compare 64 residues.
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
            # Where neither has a residue both have a gap, which is the same letter.
            different = np.bitwise_count(differs).sum(0, dtype=np.int64)
            found[place] += np.count_nonzero(different <= (1 - SAME_ROW_IDENTITY) * either + 1e-9)
    return found


def _packed(flags: np.ndarray) -> UInt64[np.ndarray, "words n"]:
    """One bit for each column of each row; columns that fill up the last word are 0 in all rows."""
    n, r = flags.shape
    padded = np.zeros((n, -(-r // 64) * 64), np.uint8)
    padded[:, :r] = flags
    return np.ascontiguousarray(np.packbits(padded, axis=1).view(np.uint64).T)
