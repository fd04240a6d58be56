"""Labels for training: the observed atoms of a chain."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, kw_only=True)
class ChainLabels:
    """Structure of one chain, with one entry per residue of the sequence in the features."""

    all_atom_positions: Float[np.ndarray, "r 37 3"]  # float32, Å
    all_atom_mask: Float[np.ndarray, "r 37"]  # float32, 1 where observed
    confidence: Float[np.ndarray, "r"]  # float32, 0..1: 1 in experimental structures, pLDDT / 100 in predicted ones
    resolution: float  # Å, 0 if unknown
    is_distillation: bool  # True for a predicted structure, False for an experimental one
