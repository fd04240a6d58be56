"""Sample templates for training, and compute their pseudo-beta positions."""

import numpy as np
from jaxtyping import Float, Float32, Int

from data_pipeline.residues import ATOM_ORDER, RESTYPES


def choose_templates(
    available: int, max_hits: int, max_templates: int, rng: np.random.Generator
) -> Int[np.ndarray, "t"]:
    """Sample the templates for a training example, and return their indices (0 is the best) in random order.

    Select min(Uniform[0, n], `max_templates`) of the n = min(`available`, `max_hits`) best templates. The network
    sometimes gets bad templates or none, so that it cannot rely on copying them. AlphaFold 2, Suppl. Sec. 1.2.3.
    """
    n = min(available, max_hits)
    return rng.permutation(n)[: min(int(rng.integers(n + 1)), max_templates)]


def pseudo_beta(
    aatype: Int[np.ndarray, "*t r"],
    positions: Float[np.ndarray, "*t r 37 3"],
    masks: Float[np.ndarray, "*t r 37"],
) -> tuple[Float32[np.ndarray, "*t r 3"], Float32[np.ndarray, "*t r"]]:
    """Return the position (Å) and the mask of each residue's C-beta, or C-alpha for glycine."""
    atom = np.where(aatype == RESTYPES.index("G"), ATOM_ORDER["CA"], ATOM_ORDER["CB"])
    mask = np.take_along_axis(masks, atom[..., None], axis=-1)[..., 0]
    position = np.take_along_axis(positions, atom[..., None, None], axis=-2)[..., 0, :]
    return position.astype(np.float32), mask.astype(np.float32)
