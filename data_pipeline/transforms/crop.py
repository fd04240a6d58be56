"""Which residues of a long chain a training example shows; every array keeps these, and they keep their numbers."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from data_pipeline.features.labels import ChainLabels
from data_pipeline.residues import ATOM_ORDER


def contiguous_crop(length: int, size: int, *, clamped: bool, rng: np.random.Generator) -> Int[np.ndarray, "c"]:
    """Indices of a stretch of `size` residues, or of the whole chain if it is not longer.

    Where the loss is clamped each place is equally likely; where it is not, the end of the range of places is drawn
    first, so that crops lie nearer to the chain's start. AlphaFold 2, Suppl. Sec. 1.2.8.
    """
    last = max(0, length - size)
    if not clamped:
        last -= int(rng.integers(last + 1))
    start = int(rng.integers(last + 1))
    return np.arange(start, min(start + size, length))


def spatial_crop(
    positions: Float[np.ndarray, "r 37 3"], mask: Float[np.ndarray, "r 37"], size: int, rng: np.random.Generator
) -> Int[np.ndarray, "c"] | None:
    """Indices, in order, of the `size` residues nearest to a random one, by C-alpha; None where none is resolved.

    AlphaFold-Multimer, Suppl. Alg. 2, on one chain: any resolved residue may be the centre. Of equals the earlier
    residue comes first; residues that were not resolved come last of all.
    """
    alpha, resolved = positions[:, ATOM_ORDER["CA"]], mask[:, ATOM_ORDER["CA"]] > 0
    candidates = np.flatnonzero(resolved)
    if not len(candidates):
        return None
    centre = alpha[candidates[rng.integers(len(candidates))]]
    distance = np.where(resolved, np.linalg.norm(alpha - centre, axis=-1), np.inf)
    return np.sort(np.argsort(distance, kind="stable")[:size])


def crop_labels(labels: ChainLabels, residues: Int[np.ndarray, "c"]) -> ChainLabels:
    """The labels of these residues only."""
    return replace(
        labels,
        all_atom_positions=labels.all_atom_positions[residues],
        all_atom_mask=labels.all_atom_mask[residues],
        confidence=labels.confidence[residues],
    )
