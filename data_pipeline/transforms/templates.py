"""Template features as the model reads them."""

import numpy as np
from jaxtyping import Float, Float32, Int

from data_pipeline.residues import ATOM_ORDER, RESTYPES


def choose_templates(
    available: int, max_hits: int, max_templates: int, rng: np.random.Generator
) -> Int[np.ndarray, "t"]:
    """Which templates a training example shows, in random order: k = min(Uniform[0, n], `max_templates`) of n.

    n are the best `max_hits`; templates are stored best first. Now and then the network sees bad templates or none,
    so that it cannot rely on copying them. AlphaFold 2, Suppl. Sec. 1.2.3.
    """
    n = min(available, max_hits)
    return rng.permutation(n)[: min(int(rng.integers(n + 1)), max_templates)]


def pseudo_beta(
    aatype: Int[np.ndarray, "*t r"],
    positions: Float[np.ndarray, "*t r 37 3"],
    masks: Float[np.ndarray, "*t r 37"],
) -> tuple[Float32[np.ndarray, "*t r 3"], Float32[np.ndarray, "*t r"]]:
    """Position and mask of each residue's C-beta, or C-alpha of glycine."""
    atom = np.where(aatype == RESTYPES.index("G"), ATOM_ORDER["CA"], ATOM_ORDER["CB"])
    mask = np.take_along_axis(masks, atom[..., None], axis=-1)[..., 0]
    position = np.take_along_axis(positions, atom[..., None, None], axis=-2)[..., 0, :]
    return position.astype(np.float32), mask.astype(np.float32)
