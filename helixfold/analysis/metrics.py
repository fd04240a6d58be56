"""Score a predicted structure against the true one: lDDT, TM-score, GDT and RMSD, as in their authors' programs.

Points are in Angstrom. Both structures have the same points, which are observed in both, in the order of the chain.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from data_pipeline.io.extras import require

_GDT_LIMITS = (0.5, 1.0, 2.0, 4.0, 8.0)  # Angstrom; GDT-HA uses the first four, GDT-TS the last four
# Constants of the TM-score program: minimum fragment length, number of rounds, and offsets of the radius within which
# pairs are superposed from the search radius, in the first round and in further rounds.
_MIN_FRAGMENT, _MAX_REFINEMENTS = 4, 20
_FIRST_RADIUS_OFFSET, _FURTHER_RADIUS_OFFSET = -1.0, 1.0
_SEARCH_RADIUS_BOUNDS = (4.5, 8.0)
_BATCH_ELEMENTS = 2**21  # distances at a time: 16 MiB


@dataclass(frozen=True, kw_only=True)
class Superposed:
    """Scores of C-alpha atoms, each with its best superposition; from 0 to 1 except the RMSD (Å).

    GDT-TS and GDT-HA are the mean fractions of atoms within 1, 2, 4 and 8 Å, and within 0.5, 1, 2 and 4 Å.
    """

    tm_score: float
    gdt_ts: float
    gdt_ha: float
    rmsd: float  # Angstrom


def lddt(predicted: Float[np.ndarray, "n 3"], true: Float[np.ndarray, "n 3"], residue: Int[np.ndarray, " n"]) -> float:
    """Return lDDT (0 to 1): the fraction of true distances that the prediction preserves (Mariani et al. 2013).

    It is the mean over the limits 0.5, 1, 2 and 4 Angstrom, for distances up to 15 Angstrom between atoms of different
    residues; `residue` is the residue index of each atom. With only C-alpha atoms it is lDDT-CA. 0 without such
    distances. Stereochemistry is not checked.
    """
    score = float(_lddt(predicted, true, residue))
    return 0.0 if np.isnan(score) else score


def residue_lddt(
    predicted: Float[np.ndarray, "n 3"],
    true: Float[np.ndarray, "n 3"],
    residue: Int[np.ndarray, " n"],
    *,
    of: Bool[np.ndarray, " n"] | None = None,
    to: Bool[np.ndarray, " n"] | None = None,
) -> tuple[Float[np.ndarray, " residues"], float]:
    """Return the lDDT of each residue up to the largest index, NaN without distances, and the lDDT of all distances.

    The latter is 0 without distances. Distances are from the atoms in the mask `of` to the atoms in the mask `to`; None
    means all atoms. See `lddt`.
    """
    by_residue, whole = (
        _lddt(predicted, true, residue, aggregation=bins, atom_mask=of, partner_mask=to)
        for bins in (residue.astype(np.int64), "all")
    )
    return np.asarray(by_residue, np.float64), 0.0 if np.isnan(whole) else float(whole)


def interface_lddt(
    predicted: Float[np.ndarray, "n 3"], true: Float[np.ndarray, "n 3"], chain: Int[np.ndarray, " n"]
) -> float | None:
    """Return the fraction of true distances between atoms of different chains that the prediction preserves, 0 to 1.

    Like `lddt`, for these distances only; `chain` is the chain index of each atom. None without such distances.
    """
    # Atoms of one chain count as one residue, within which lDDT ignores distances.
    score = float(_lddt(predicted, true, chain))
    return None if np.isnan(score) else score


def _lddt(predicted: np.ndarray, true: np.ndarray, residue: np.ndarray, **options: Any) -> Any:
    """Call biotite's lDDT with points instead of structures."""
    require("evaluate", "biotite", action="lDDT")
    from biotite import structure  # noqa: PLC0415

    atoms = structure.AtomArray(len(true))
    atoms.coord = true.astype(np.float32)
    atoms.res_id = residue
    return structure.lddt(atoms, predicted.astype(np.float32), **options)


@dataclass(frozen=True, kw_only=True)
class Superposition:
    """A rotation followed by a translation (`shift`, in Å) that superposes points on others."""

    rotation: Float64[np.ndarray, "3 3"]
    shift: Float64[np.ndarray, " 3"]  # Angstrom

    def apply(self, points: Float[np.ndarray, "*n 3"]) -> Float[np.ndarray, "*n 3"]:
        """Return points after rotation and shift."""
        return (points @ self.rotation.T + self.shift).astype(points.dtype)


def superposition(predicted: Float[np.ndarray, "n 3"], true: Float[np.ndarray, "n 3"]) -> Superposition:
    """Return the rotation and shift that superpose predicted points on the true points with minimum RMSD."""
    centre, onto = (points.mean(0, dtype=np.float64) for points in (predicted, true))
    rotation = best_rotation((true - onto).T.astype(np.float64) @ (predicted - centre))
    return Superposition(rotation=rotation, shift=onto - rotation @ centre)


def best_rotation(covariance: Float[np.ndarray, "*f 3 3"]) -> Float[np.ndarray, "*f 3 3"]:
    """Return the rotations that superpose centred points x on centred points y, from the sums of y x^T."""
    left, _, right = np.linalg.svd(covariance)
    # If a reflection fits better than any rotation, reverse the axis with the smallest singular value.
    left[..., 2] *= np.sign(np.linalg.det(left) * np.linalg.det(right))[..., None]
    return left @ right


def distance_difference(
    predicted: Float[np.ndarray, "n 3"], true: Float[np.ndarray, "n 3"]
) -> Float[np.ndarray, "n n"]:
    """Return predicted minus true distances of all pairs of points, in Angstrom.

    No superposition is needed.
    """
    predicted_distances, true_distances = (
        np.sqrt(np.square(points[:, None] - points[None]).sum(-1)) for points in (predicted, true)
    )
    return predicted_distances - true_distances


def rmsd(predicted: Float[np.ndarray, "n 3"], true: Float[np.ndarray, "n 3"]) -> float:
    """Return the root mean square distance of points, in Å, after the superposition that minimizes it."""
    fitted = superposition(predicted, true).apply(predicted.astype(np.float64))
    return float(np.sqrt(np.square(fitted - true).sum(-1).mean()))


def superposed_scores(
    predicted: Float[np.ndarray, "n 3"], true: Float[np.ndarray, "n 3"], length: int | None = None
) -> Superposed:
    """Return TM-score (Zhang & Skolnick 2004), GDT and RMSD of the n C-alpha atoms that both structures have.

    `length` is the number of residues of the true structure if the prediction lacks some, which then count as wrong,
    except in the RMSD. As in the TM-score program, the search starts from every fragment of six lengths, and each
    superposition is refined on the pairs that it brings together. TM-score and each count of GDT are the best over all
    superpositions. If a predicted position is not finite, the scores are 0 and the RMSD is NaN.
    """
    if not np.isfinite(predicted).all():
        return Superposed(tm_score=0.0, gdt_ts=0.0, gdt_ha=0.0, rmsd=float("nan"))
    length = length or len(true)
    search = _Search(predicted, true, scale=tm_scale(length))
    for size in _fragment_sizes(len(true)):
        search.from_fragments(size)
    fractions_within = search.within / length
    return Superposed(
        tm_score=float(search.tm_sum / length),
        gdt_ts=float(fractions_within[1:].mean()),
        gdt_ha=float(fractions_within[:-1].mean()),
        rmsd=rmsd(predicted, true),
    )


def tm_scale(length: int) -> float:
    """Return the distance scale of the TM-score in Å, at which a residue counts half, for `length` residues.

    It is at least 0.5 Å.
    """
    return float(max(0.5, 1.24 * np.cbrt(length - 15) - 1.8))


def _fragment_sizes(length: int) -> list[int]:
    """Return sizes of the fragments on which searches begin: the length and its halves, down to a minimum."""
    smallest = min(_MIN_FRAGMENT, length)
    halves = [length >> halvings for halvings in range(5)]
    return [*(size for size in halves if size > smallest), smallest]


class _Search:
    """Search for the best scores over many superpositions, which are computed together."""

    def __init__(self, predicted: Float[np.ndarray, "n 3"], true: Float[np.ndarray, "n 3"], scale: float) -> None:
        # Points are centred, so that the differences below do not lose precision.
        self._x, self._y = (points - points.mean(0, dtype=np.float64) for points in (predicted, true))
        self._scale = scale
        self._radius = float(np.clip(scale, *_SEARCH_RADIUS_BOUNDS))
        # For each pair: terms of the covariance, which is a sum over pairs, and terms of the squared distance.
        self._products = np.einsum("n a, n b -> n a b", self._y, self._x).reshape(-1, 9)
        self._squares = np.square(self._x).sum(1) + np.square(self._y).sum(1)
        self.tm_sum = 0.0
        self.within = np.zeros(len(_GDT_LIMITS))

    def from_fragments(self, size: int) -> None:
        """Start the search from every stretch of `size` residues."""
        n = len(self._x)
        starts = np.arange(n - size + 1)
        batch = max(1, _BATCH_ELEMENTS // n)
        for first in range(0, len(starts), batch):
            start = starts[first : first + batch, None]
            self._refine((np.arange(n) >= start) & (np.arange(n) < start + size))

    def _refine(self, mask: Bool[np.ndarray, "f n"]) -> None:
        """Superpose again on the pairs that are near after a superposition, until these pairs stay the same."""
        squared = self._scored(mask)
        mask = self._near(squared, self._radius + _FIRST_RADIUS_OFFSET)
        for _ in range(_MAX_REFINEMENTS):
            squared = self._scored(mask)
            further = self._near(squared, self._radius + _FURTHER_RADIUS_OFFSET)
            # Continue only superpositions whose pairs have changed.
            mask = further[(further != mask).any(1)]
            if not len(mask):
                break

    def _near(self, squared: Float64[np.ndarray, "f n"], radius: float) -> Bool[np.ndarray, "f n"]:
        """Return masks of pairs within a radius, which grows by 0.5 Angstrom until it has three pairs or all."""
        count = min(3, squared.shape[1])
        # Minimum number of steps of 0.5 Angstrom for each superposition.
        third = np.sqrt(np.partition(squared, count - 1, axis=1)[:, count - 1])
        wider = np.maximum(0, np.floor((third - radius) / 0.5) + 1)
        return squared < np.square(radius + 0.5 * wider)[:, None]

    def _scored(self, mask: Bool[np.ndarray, "f n"]) -> Float64[np.ndarray, "f n"]:
        """Superpose the pairs in `mask`, return the squared distances of all pairs, and update the best scores."""
        squared = self._distances(mask)
        self.tm_sum = max(self.tm_sum, float((1 / (1 + squared / self._scale**2)).sum(1).max()))
        self.within = np.maximum(self.within, [(squared <= limit**2).sum(1).max() for limit in _GDT_LIMITS])
        return squared

    def _distances(self, mask: Bool[np.ndarray, "f n"]) -> Float64[np.ndarray, "f n"]:
        """Return the squared distances of all pairs after a superposition on the pairs of each row of `mask`."""
        weights = mask / mask.sum(1, keepdims=True)
        x, y = weights @ self._x, weights @ self._y
        covariance = (weights @ self._products).reshape(-1, 3, 3) - y[:, :, None] * x[:, None]
        rotation = best_rotation(covariance)
        shift = y - np.einsum("f a b, f b -> f a", rotation, x)
        # Expanded |R x + t - y|^2, as a matrix product for all superpositions and pairs.
        turned_shift = np.einsum("f a b, f a -> f b", rotation, shift)
        squared = -rotation.reshape(-1, 9) @ self._products.T + turned_shift @ self._x.T - shift @ self._y.T
        squared *= 2
        squared += self._squares + np.square(shift).sum(1, keepdims=True)
        return np.maximum(squared, 0)
