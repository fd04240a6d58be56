"""Features that follow from the target's sequence alone."""

import numpy as np
from jaxtyping import Int32

from data_pipeline.residues import RESTYPES, UNKNOWN

_AATYPE = np.full(256, UNKNOWN, np.int32)
_AATYPE[np.frombuffer(RESTYPES.encode(), np.uint8)] = np.arange(len(RESTYPES))


def aatype_from_sequence(sequence: str) -> Int32[np.ndarray, "r"]:
    """Residue types; every letter but the twenty is unknown."""
    return _AATYPE[np.frombuffer(sequence.encode("ascii"), np.uint8)]


def residue_index(length: int) -> Int32[np.ndarray, "r"]:
    return np.arange(length, dtype=np.int32)
