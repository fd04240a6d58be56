"""Compare many structures of one protein: TM-scores of all pairs, conformations and fluctuations.

All structures have the same residues; points are C-alpha atoms, in Å. `SAME_CONFORMATION` is the mean TM-score from
which structures count as one conformation.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float, Float64, Int

from helixfold.analysis.metrics import best_rotation, superposition, tm_scale

# Structures have the same conformation if the mean TM-score between them is at least this.
SAME_CONFORMATION: Final = 0.8
# Refinements of each superposition.
_REFINEMENTS = 8
# Updates of the mean structure, on which all structures are superposed.
_MEAN_UPDATES = 5
_BATCH_ELEMENTS = 2**20  # coordinates of residues at a time: 8 MiB


@dataclass(frozen=True, kw_only=True)
class PairScores:
    """TM-score, 0 to 1, and RMSD in Angstrom of pairs of structures."""

    tm_score: Float64[np.ndarray, " n"]
    rmsd: Float64[np.ndarray, " n"]


def pair_scores(
    one: Float[np.ndarray, "n r 3"], other: Float[np.ndarray, "n r 3"], length: int | None = None
) -> PairScores:
    """Return the scores of n pairs of structures; `length` normalises TM-scores (default: the number of points).

    Many pairs are superposed at once. The search starts from the whole chain, its halves and its middle, and weights
    each pair of points by its contribution to the TM-score. Scores above 0.5 of chains from 40 residues agree with
    `superposed_scores` within 0.01; short chains may have higher scores there.
    """
    scores = [np.zeros(len(one)), np.zeros(len(one))]
    step = max(1, _BATCH_ELEMENTS // (3 * one.shape[1]))
    for start in range(0, len(one), step):
        batch = slice(start, start + step)
        tm_score, rmsd = _scores(one[batch].astype(np.float64), other[batch].astype(np.float64), length)
        scores[0][batch], scores[1][batch] = tm_score, rmsd
    return PairScores(tm_score=scores[0], rmsd=scores[1])


def scores_to(
    points: Float[np.ndarray, "n r 3"], reference: Float[np.ndarray, "r 3"], length: int | None = None
) -> PairScores:
    """Return the scores of n structures, each against the same reference; `length` is as in `pair_scores`."""
    return pair_scores(points, np.broadcast_to(reference, points.shape), length)


def tm_map(points: Float[np.ndarray, "n r 3"]) -> Float64[np.ndarray, "n n"]:
    """Return the symmetric matrix of the TM-scores of all pairs of structures, with 1 on the diagonal.

    See `pair_scores`.
    """
    first, second = np.triu_indices(len(points), 1)
    scores = np.eye(len(points))
    step = max(1, _BATCH_ELEMENTS // (3 * points.shape[1]))
    for start in range(0, len(first), step):
        i, j = first[start : start + step], second[start : start + step]
        scores[i, j] = scores[j, i] = pair_scores(points[i], points[j]).tm_score
    return scores


def conformations(tm_scores: Float64[np.ndarray, "n n"]) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Group structures by TM-score; return the group of each structure, and an order that puts similar ones together.

    Groups are merged as long as the mean TM-score between two is at least `SAME_CONFORMATION` (average linkage). The
    largest group has index 0.
    """
    if len(tm_scores) == 1:
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    # SciPy takes long to import.
    from scipy.cluster import hierarchy  # noqa: PLC0415
    from scipy.spatial.distance import squareform  # noqa: PLC0415

    distances = squareform(np.clip(1 - tm_scores, 0, None), checks=False)
    tree = hierarchy.linkage(distances, "average")
    clusters = hierarchy.fcluster(tree, 1 - SAME_CONFORMATION, "distance")
    order = hierarchy.leaves_list(tree)
    _, first, inverse, counts = np.unique(clusters, return_index=True, return_inverse=True, return_counts=True)
    by_size = np.lexsort((first, -counts))
    new_indices = np.empty(len(counts), np.int64)
    new_indices[by_size] = np.arange(len(counts))
    labels = new_indices[inverse]
    # Groups are sorted by size, and their members by the tree's order.
    return labels, order[np.argsort(labels[order], kind="stable")]


def nearest(
    points: Float[np.ndarray, "n r 3"], centres: Float[np.ndarray, "k r 3"]
) -> tuple[Int[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """Return the index of the most similar centre of each structure, and its TM-score."""
    scores = np.stack([scores_to(points, centre).tm_score for centre in centres], axis=1)
    return scores.argmax(1), scores.max(1)


def medoid(tm_scores: Float64[np.ndarray, "n n"]) -> int:
    """Return the index of the structure with the largest sum of TM-scores to all structures."""
    return int(tm_scores.sum(1).argmax())


def fluctuations(points: Float[np.ndarray, "n r 3"]) -> Float64[np.ndarray, " r"]:
    """Return the root mean square fluctuation (RMSF) of each residue about the mean structure, in Angstrom.

    All structures are superposed on their mean, which is updated several times.
    """
    mean = points[0].astype(np.float64)
    for _ in range(_MEAN_UPDATES):
        total = np.zeros_like(mean)
        for each in points:
            total += superposition(each.astype(np.float64), mean).apply(each.astype(np.float64))
        mean = total / len(points)
    squared = np.zeros(len(mean))
    for each in points:
        moved = superposition(each.astype(np.float64), mean).apply(each.astype(np.float64))
        squared += np.square(moved - mean).sum(1)
    return np.sqrt(squared / len(points))


def _scores(
    x: Float64[np.ndarray, "n r 3"], y: Float64[np.ndarray, "n r 3"], length: int | None
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """Return TM-scores and RMSDs of a batch of pairs."""
    residues = x.shape[1]
    scale = tm_scale(length or residues) ** 2
    x, y = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
    best = np.zeros(len(x))
    rmsd = np.zeros(len(x))
    for index, fragment in enumerate(_fragments(residues)):
        weights = np.zeros(x.shape[:2])
        weights[:, fragment] = 1
        for turn in range(_REFINEMENTS):
            squared = _squared_distances(x, y, weights)
            if index == turn == 0:
                rmsd = np.sqrt(squared.mean(1))
            terms = 1 / (1 + squared / scale)
            best = np.maximum(best, terms.sum(1) / (length or residues))
            # The score never decreases with a superposition by these weights.
            weights = np.square(terms)
    return best, rmsd


def _fragments(residues: int) -> list[slice]:
    """Return the stretches from which a search starts: the whole chain, and three halves unless it is short."""
    if residues < 6:
        return [slice(residues)]
    half, quarter = residues // 2, residues // 4
    return [slice(residues), slice(half), slice(residues - half, residues), slice(quarter, quarter + half)]


def _squared_distances(
    x: Float64[np.ndarray, "n r 3"], y: Float64[np.ndarray, "n r 3"], weights: Float64[np.ndarray, "n r"]
) -> Float64[np.ndarray, "n r"]:
    """Return squared distances of points after weighted superposition of each x on its y."""
    weights = weights / weights.sum(1, keepdims=True)
    centre, onto = (np.einsum("n r, n r a -> n a", weights, points) for points in (x, y))
    moved, fixed = x - centre[:, None], y - onto[:, None]
    covariance = np.swapaxes(fixed * weights[..., None], 1, 2) @ moved
    rotated = moved @ np.swapaxes(best_rotation(covariance), 1, 2)
    return np.square(rotated - fixed).sum(-1)
