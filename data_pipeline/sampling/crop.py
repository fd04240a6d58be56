"""Crop long chains and large complexes for training examples; residues remain in order.

`INTERFACE_DISTANCE` (Å) is the max distance of C-alpha atoms of two chains at an interface.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.features.labels import ChainLabels
from data_pipeline.residues import ATOM_ORDER


def contiguous_crop(length: int, size: int, *, clamped: bool, rng: np.random.Generator) -> Int[np.ndarray, "c"]:
    """Return the indices of `size` neighbouring residues of a chain of `length` residues, or of all if it has fewer.

    If the loss of the example is clamped, all start positions are equally likely. Otherwise, the max start position is
    sampled first, so crops are closer to the start of the chain. AlphaFold 2, Suppl. Sec. 1.2.8.
    """
    last = max(0, length - size)
    if not clamped:
        last -= int(rng.integers(last + 1))
    start = int(rng.integers(last + 1))
    return np.arange(start, min(start + size, length))


def spatial_crop(
    positions: Float[np.ndarray, "r 37 3"], mask: Float[np.ndarray, "r 37"], size: int, rng: np.random.Generator
) -> Int[np.ndarray, "c"] | None:
    """Return the sorted indices of the `size` residues nearest to a random resolved one, or None if none is resolved.

    Distances are between C-alpha atoms. Ties go to the earlier residue, and unresolved residues come last.
    AlphaFold-Multimer, Suppl. Alg. 2, applied to one chain.
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
    """Return the sorted indices of the `size` residues nearest to a random one of `centres`, by C-alpha distance.

    Return None without centres. Ties go to the earlier residue, and unresolved residues come last.
    """
    if not len(centres):
        return None
    centre = centres[rng.integers(len(centres))]
    distance = np.where(resolved, np.linalg.norm(alpha - alpha[centre], axis=-1), np.inf)
    return np.sort(np.argsort(distance, kind="stable")[:size])


def crop_labels(labels: ChainLabels, residues: Int[np.ndarray, "c"]) -> ChainLabels:
    """Return the labels of the residues with these indices, in this order; values of the whole chain are unchanged."""
    arrays = {name: each[residues] for name, each in vars(labels).items() if isinstance(each, np.ndarray)}
    return replace(labels, **arrays)


# Max distance in Å between C-alphas of two chains at an interface.
INTERFACE_DISTANCE = 15.0
# Number of C-alphas with distances from all others in memory at a time.
_ROWS = 512


def contiguous_complex_crop(lengths: Sequence[int], size: int, rng: np.random.Generator) -> Int[np.ndarray, "c"]:
    """Return the indices of up to `size` residues of a complex: one contiguous segment of each chain.

    Chains are processed in random order. Each gets a segment of random length and position, long enough to fill the
    crop and short enough to fit. `lengths` are the numbers of residues of the chains. AlphaFold-Multimer (Evans et al.
    2022), Suppl. Alg. 1.
    """
    starts = np.cumsum([0, *lengths])
    residues_left, remaining = size, int(starts[-1])
    segments: list[Int[np.ndarray, "n"]] = []
    for chain in rng.permutation(len(lengths)):
        length = lengths[chain]
        remaining -= length
        max_size = min(residues_left, length)
        min_size = min(length, max(0, residues_left - remaining))
        crop_size = int(rng.integers(min_size, max_size + 1))
        residues_left -= crop_size
        first = int(starts[chain] + rng.integers(length - crop_size + 1))
        segments.append(np.arange(first, first + crop_size))
    return np.sort(np.concatenate(segments))


def interface_crop(
    alpha: Float[np.ndarray, "r 3"],
    resolved: Bool[np.ndarray, "r"],
    asym_id: Int[np.ndarray, "r"],
    size: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "c"] | None:
    """Return the sorted indices of the `size` residues nearest to a random interface residue, or None if there is none.

    A residue is at an interface if a C-alpha of another chain is within 15 Å of its own. Unresolved residues come last.
    AlphaFold-Multimer (Evans et al. 2022), Suppl. Alg. 2.
    """
    return _nearest_residues(alpha, resolved, np.flatnonzero(at_interface(alpha, resolved, asym_id)), size, rng)


def at_interface(
    alpha: Float[np.ndarray, "r 3"], resolved: Bool[np.ndarray, "r"], asym_id: Int[np.ndarray, "r"]
) -> Bool[np.ndarray, "r"]:
    """Return whether each residue has a C-alpha of another chain within 15 Å of its own.

    Both residues must be `resolved`. `alpha` has the positions of C-alpha atoms in Å.
    """
    is_near = np.zeros(len(alpha), np.bool_)
    for start in range(0, len(alpha), _ROWS):
        rows = slice(start, start + _ROWS)
        distance = np.linalg.norm(alpha[rows, None] - alpha, axis=-1)
        near = (distance <= INTERFACE_DISTANCE) & (asym_id[rows, None] != asym_id)
        is_near[rows] = (near & resolved[rows, None] & resolved).any(axis=1)
    return is_near
