"""Choose the residues of a long chain or a large complex that a training example shows, in their order."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.features.labels import ChainLabels
from data_pipeline.residues import ATOM_ORDER


def contiguous_crop(length: int, size: int, *, clamped: bool, rng: np.random.Generator) -> Int[np.ndarray, "c"]:
    """Return the indices of `size` neighbouring residues, or of the whole chain if it is not longer.

    If the loss of the example is clamped, every start position is equally likely. If not, the largest allowed start is
    drawn first, so that crops lie nearer to the start of the chain. AlphaFold 2, Suppl. Sec. 1.2.8.
    """
    last = max(0, length - size)
    if not clamped:
        last -= int(rng.integers(last + 1))
    start = int(rng.integers(last + 1))
    return np.arange(start, min(start + size, length))


def spatial_crop(
    positions: Float[np.ndarray, "r 37 3"], mask: Float[np.ndarray, "r 37"], size: int, rng: np.random.Generator
) -> Int[np.ndarray, "c"] | None:
    """Return the sorted indices of the `size` residues nearest to a random resolved one; None if none is resolved.

    Distances are those between C-alpha atoms. Of residues at equal distance the earlier is chosen first, and
    unresolved residues are chosen last. AlphaFold-Multimer, Suppl. Alg. 2, applied to one chain.
    """
    alpha, resolved = positions[:, ATOM_ORDER["CA"]], mask[:, ATOM_ORDER["CA"]] > 0
    return _nearest_residues(alpha, resolved, np.flatnonzero(resolved), size, rng)


def _nearest_residues(
    alpha: Float[np.ndarray, "r 3"],
    resolved: Bool[np.ndarray, "r"],
    centres: Int[np.ndarray, "n"],
    size: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "c"] | None:
    """Return the sorted indices of the `size` residues whose C-alphas are nearest to that of a random one of `centres`.

    None if there is no centre. Of residues at equal distance the earlier is chosen first, and unresolved residues are
    chosen last.
    """
    if not len(centres):
        return None
    centre = centres[rng.integers(len(centres))]
    distance = np.where(resolved, np.linalg.norm(alpha - alpha[centre], axis=-1), np.inf)
    return np.sort(np.argsort(distance, kind="stable")[:size])


def crop_labels(labels: ChainLabels, residues: Int[np.ndarray, "c"]) -> ChainLabels:
    """Return the labels of the given residues only: of every array, whose first axis are the residues."""
    arrays = {name: each[residues] for name, each in vars(labels).items() if isinstance(each, np.ndarray)}
    return replace(labels, **arrays)


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
    return _nearest_residues(alpha, resolved, np.flatnonzero(at_interface(alpha, resolved, asym_id)), size, rng)


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
