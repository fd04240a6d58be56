"""Choose the residues of a large complex that a training example shows; they keep the order of the complex."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.transforms.crop import nearest_residues

# Angstrom between the C-alphas of residues of two chains that are at an interface.
INTERFACE_DISTANCE = 15.0
# C-alphas whose distances from all others are in memory at a time.
_ROWS = 512


def contiguous_complex_crop(lengths: Sequence[int], size: int, rng: np.random.Generator) -> Int[np.ndarray, "c"]:
    """Return the indices of `size` residues of a complex, or of all if it has no more: one stretch of each chain.

    Chains come in random order, and each gets a stretch of random length and place, at least as long as is needed to
    fill the crop and at most as long as there is room for. `lengths` are the numbers of residues of the chains.
    AlphaFold-Multimer (Evans et al. 2022), Suppl. Alg. 1.
    """
    starts = np.cumsum([0, *lengths])
    room, remaining = size, int(starts[-1])
    found: list[Int[np.ndarray, "n"]] = []
    for chain in rng.permutation(len(lengths)):
        length = lengths[chain]
        remaining -= length
        most = min(room, length)
        least = min(length, max(0, room - remaining))
        taken = int(rng.integers(least, most + 1))
        room -= taken
        first = int(starts[chain] + rng.integers(length - taken + 1))
        found.append(np.arange(first, first + taken))
    return np.sort(np.concatenate(found))


def interface_crop(
    alpha: Float[np.ndarray, "r 3"],
    resolved: Bool[np.ndarray, "r"],
    asym_id: Int[np.ndarray, "r"],
    size: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "c"] | None:
    """Return the sorted indices of the `size` residues nearest to a random one at an interface; None without any.

    A residue is at an interface if a C-alpha of another chain is within 15 Angstrom of its own. Unresolved residues are
    chosen last. AlphaFold-Multimer (Evans et al. 2022), Suppl. Alg. 2.
    """
    candidates = np.flatnonzero(at_interface(alpha, resolved, asym_id))
    if not len(candidates):
        return None
    return nearest_residues(alpha, resolved, int(candidates[rng.integers(len(candidates))]), size)


def at_interface(
    alpha: Float[np.ndarray, "r 3"], resolved: Bool[np.ndarray, "r"], asym_id: Int[np.ndarray, "r"]
) -> Bool[np.ndarray, "r"]:
    """Return which residues have the C-alpha of another chain within 15 Angstrom of their own."""
    found = np.zeros(len(alpha), np.bool_)
    for start in range(0, len(alpha), _ROWS):
        rows = slice(start, start + _ROWS)
        distance = np.linalg.norm(alpha[rows, None] - alpha, axis=-1)
        near = (distance <= INTERFACE_DISTANCE) & (asym_id[rows, None] != asym_id)
        found[rows] = (near & resolved[rows, None] & resolved).any(axis=1)
    return found
