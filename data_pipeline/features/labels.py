"""Labels for training: the observed atoms of a chain."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, kw_only=True)
class ChainLabels:
    """Structure of one chain, with one entry per residue of the sequence in the features.

    Positions are in Å, and the mask is 1 for observed atoms. `confidence` (0..1) is 1 in experimental structures and
    pLDDT / 100 in predicted ones, for which `is_distillation` is True. `resolution` is in Å, 0 if unknown.
    """

    all_atom_positions: Float[np.ndarray, "r 37 3"]  # float32, Å
    all_atom_mask: Float[np.ndarray, "r 37"]  # float32, 1 where observed
    confidence: Float[np.ndarray, "r"]  # float32, 0..1: 1 in experimental structures, pLDDT / 100 in predicted ones
    resolution: float  # Å, 0 if unknown
    is_distillation: bool  # True for a predicted structure, False for an experimental one
