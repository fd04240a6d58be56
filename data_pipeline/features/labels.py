"""What a training example is compared with: the observed atoms of its chain."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, kw_only=True)
class ChainLabels:
    """The structure of one chain, over the residues of its features' sequence."""

    all_atom_positions: Float[np.ndarray, "r 37 3"]  # float32, Angstrom
    all_atom_mask: Float[np.ndarray, "r 37"]  # float32, 1 where observed
    confidence: Float[np.ndarray, "r"]  # float32, 0..1: 1 in experimental structures, pLDDT / 100 in predicted ones
    resolution: float  # Angstrom, 0 unknown
    is_distillation: bool  # a prediction stands in for an experiment
