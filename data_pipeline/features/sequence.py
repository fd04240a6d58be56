"""Compute the features that depend only on the sequence."""

import numpy as np
from jaxtyping import Int32

from data_pipeline.residues import RESTYPES, UNKNOWN

_AATYPE_OF_CODE = np.full(256, UNKNOWN, np.int32)
_AATYPE_OF_CODE[np.frombuffer(RESTYPES.encode(), np.uint8)] = np.arange(len(RESTYPES))


def aatype_from_sequence(sequence: str) -> Int32[np.ndarray, "r"]:
    """Return the residue type of each letter, 0..19, or 20 (unknown) for other letters."""
    return _AATYPE_OF_CODE[np.frombuffer(sequence.encode("ascii"), np.uint8)]
