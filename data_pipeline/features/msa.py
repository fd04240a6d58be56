"""Alignments merged into one MSA of residue types."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int8, Int32

from data_pipeline.parse.a3m import Alignment
from data_pipeline.residues import GAP, RESTYPES_WITH_X_AND_GAP, UNKNOWN

_TYPES = np.full(256, UNKNOWN, np.int8)
_TYPES[np.frombuffer(RESTYPES_WITH_X_AND_GAP.encode(), np.uint8)] = np.arange(GAP + 1)
# In MSA rows HHblits' numbering, and so AlphaFold, takes these letters for the residue they most resemble.
for _letter, _similar in (("B", "D"), ("U", "C"), ("Z", "E")):
    _TYPES[ord(_letter)] = RESTYPES_WITH_X_AND_GAP.index(_similar)


def single_sequence(sequence: str) -> Alignment:
    """The alignment of a target to nothing but itself."""
    letters = np.frombuffer(sequence.encode("ascii"), np.uint8)[None]
    return Alignment(names=("query",), letters=letters, deletion_matrix=np.zeros(letters.shape, np.int32))


def msa_features(alignments: Sequence[Alignment]) -> tuple[Int8[np.ndarray, "n r"], Int32[np.ndarray, "n r"]]:
    """MSA and deletion matrix of all alignments' rows in order, of equal sequences only the first.

    Residue types are ours (0..19, 20 unknown, 21 gap). AlphaFold 2, Suppl. Sec. 1.2.1.
    """
    seen: set[bytes] = set()
    msa, deletions = [], []
    for alignment in alignments:
        first: list[int] = []
        for index, row in enumerate(alignment.letters):
            sequence = row.tobytes()
            if sequence not in seen:
                seen.add(sequence)
                first.append(index)
        msa.append(_TYPES[alignment.letters[first]])
        deletions.append(alignment.deletion_matrix[first])
    return np.concatenate(msa), np.concatenate(deletions)
