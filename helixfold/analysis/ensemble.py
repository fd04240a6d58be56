"""Compare many structures of one protein with each other: TM-scores of all pairs, conformations, fluctuations.

All structures have the same residues; points are C-alpha atoms, in Angstrom.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float, Float64, Int

from helixfold.analysis.metrics import best_rotation, superposition, tm_scale

# Structures are one conformation if the TM-scores between them are at least this, in the mean.
SAME_CONFORMATION: Final = 0.8
# Each superposition is refined so many times.
_ROUNDS = 8
# Rounds in which the mean structure, on which all are superposed, is made anew.
_MEANS = 5
_BATCH_ELEMENTS = 2**20  # coordinates of residues at a time: 8 MiB


@dataclass(frozen=True, kw_only=True)
class PairScores:
    """TM-score, 0 to 1, and RMSD in Angstrom of pairs of structures."""

    tm_score: Float64[np.ndarray, " n"]
    rmsd: Float64[np.ndarray, " n"]


def pair_scores(
    one: Float[np.ndarray, "n r 3"], other: Float[np.ndarray, "n r 3"], length: int | None = None
) -> PairScores:
    """Return the scores of n pairs of structures, for TM-scores normalised by `length` or else the number of points.

    Many pairs are superposed at once. The search begins with the whole chain, its halves and its middle, and weights
    each pair of points by how much it adds to the TM-score. Scores above 0.5 of chains from 40 residues are those of
    `superposed_scores` to 0.01; short chains may have higher ones.
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
    """Return the scores of structures against one reference; `length` is that of `pair_scores`."""
    return pair_scores(points, np.broadcast_to(reference, points.shape), length)


def tm_map(points: Float[np.ndarray, "n r 3"]) -> Float64[np.ndarray, "n n"]:
    """Return the TM-scores of all pairs of structures, as `pair_scores` finds them."""
    first, second = np.triu_indices(len(points), 1)
    scores = np.eye(len(points))
    step = max(1, _BATCH_ELEMENTS // (3 * points.shape[1]))
    for start in range(0, len(first), step):
        i, j = first[start : start + step], second[start : start + step]
        scores[i, j] = scores[j, i] = pair_scores(points[i], points[j]).tm_score
    return scores


def conformations(tm_scores: Float64[np.ndarray, "n n"]) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Group structures by their TM-scores; return the number of each one's group and an order in which like ones meet.

    Groups are merged as long as the mean TM-score between two is at least `SAME_CONFORMATION` (average linkage). The
    largest is number 0.
    """
    if len(tm_scores) == 1:
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    # Takes long to import.
    from scipy.cluster import hierarchy  # noqa: PLC0415
    from scipy.spatial.distance import squareform  # noqa: PLC0415

    distances = squareform(np.clip(1 - tm_scores, 0, None), checks=False)
    tree = hierarchy.linkage(distances, "average")
    found = hierarchy.fcluster(tree, 1 - SAME_CONFORMATION, "distance")
    order = hierarchy.leaves_list(tree)
    _, first, inverse, counts = np.unique(found, return_index=True, return_inverse=True, return_counts=True)
    by_size = np.lexsort((first, -counts))
    numbers = np.empty(len(counts), np.int64)
    numbers[by_size] = np.arange(len(counts))
    labels = numbers[inverse]
    # Groups by size, each in the tree's order.
    return labels, order[np.argsort(labels[order], kind="stable")]


def nearest(
    points: Float[np.ndarray, "n r 3"], centres: Float[np.ndarray, "k r 3"]
) -> tuple[Int[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """Return the number of the centre that each structure is most like, and the TM-score to it."""
    scores = np.stack([scores_to(points, centre).tm_score for centre in centres], axis=1)
    return scores.argmax(1), scores.max(1)


def medoid(tm_scores: Float64[np.ndarray, "n n"]) -> int:
    """Return the number of the structure that is most like all others."""
    return int(tm_scores.sum(1).argmax())


def fluctuations(points: Float[np.ndarray, "n r 3"]) -> Float64[np.ndarray, " r"]:
    """Return the root mean square fluctuation (RMSF) of each residue in Angstrom, about the mean of the structures.

    All structures are superposed on their mean, which is made anew until it settles.
    """
    mean = points[0].astype(np.float64)
    for _ in range(_MEANS):
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
    for number, fragment in enumerate(_fragments(residues)):
        weights = np.zeros(x.shape[:2])
        weights[:, fragment] = 1
        for turn in range(_ROUNDS):
            squared = _squared_distances(x, y, weights)
            if number == turn == 0:
                rmsd = np.sqrt(squared.mean(1))
            terms = 1 / (1 + squared / scale)
            best = np.maximum(best, terms.sum(1) / (length or residues))
            # The score grows with every superposition by these weights.
            weights = np.square(terms)
    return best, rmsd


def _fragments(residues: int) -> list[slice]:
    """Return the stretches of a chain from which a search begins: all of it, and if it is not short three halves."""
    if residues < 6:
        return [slice(residues)]
    half, quarter = residues // 2, residues // 4
    return [slice(residues), slice(half), slice(residues - half, residues), slice(quarter, quarter + half)]


def _squared_distances(
    x: Float64[np.ndarray, "n r 3"], y: Float64[np.ndarray, "n r 3"], weights: Float64[np.ndarray, "n r"]
) -> Float64[np.ndarray, "n r"]:
    """Return squared distances of points, after superposing each x on its y by the weights."""
    weights = weights / weights.sum(1, keepdims=True)
    centre, onto = (np.einsum("n r, n r a -> n a", weights, points) for points in (x, y))
    moved, fixed = x - centre[:, None], y - onto[:, None]
    covariance = np.swapaxes(fixed * weights[..., None], 1, 2) @ moved
    rotated = moved @ np.swapaxes(best_rotation(covariance), 1, 2)
    return np.square(rotated - fixed).sum(-1)
