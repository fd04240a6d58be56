"""Choose the residues of a long chain that a training example shows; they keep their residue indices."""

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
    candidates = np.flatnonzero(resolved)
    if not len(candidates):
        return None
    return nearest_residues(alpha, resolved, int(candidates[rng.integers(len(candidates))]), size)


def nearest_residues(
    alpha: Float[np.ndarray, "r 3"], resolved: Bool[np.ndarray, "r"], centre: int, size: int
) -> Int[np.ndarray, "c"]:
    """Return the sorted indices of the `size` residues whose C-alphas are nearest to that of the residue `centre`.

    Of residues at equal distance the earlier is chosen first, and unresolved residues are chosen last.
    """
    distance = np.where(resolved, np.linalg.norm(alpha - alpha[centre], axis=-1), np.inf)
    return np.sort(np.argsort(distance, kind="stable")[:size])


def crop_labels(labels: ChainLabels, residues: Int[np.ndarray, "c"]) -> ChainLabels:
    """Return the labels of the given residues only."""
    return replace(
        labels,
        all_atom_positions=labels.all_atom_positions[residues],
        all_atom_mask=labels.all_atom_mask[residues],
        confidence=labels.confidence[residues],
    )
