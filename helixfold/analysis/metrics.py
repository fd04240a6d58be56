"""Score how close a predicted structure is to the true one: lDDT, TM-score, GDT and RMSD, as their authors' programs.

Points are in Angstrom. Both structures have the same points, those that are observed in both, in the chain's order.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from data_pipeline.io.extras import require

_GDT_LIMITS = (0.5, 1.0, 2.0, 4.0, 8.0)  # Angstrom; GDT-HA uses the first four, GDT-TS the last four
# Constants of the TM-score program: the shortest fragment, the number of rounds, and by how much the radius within
# which pairs are superposed differs from the search radius, in the first round and in further ones.
_LEAST_FRAGMENT, _ROUNDS = 4, 20
_FIRST_RADIUS, _FURTHER_RADIUS = -1.0, 1.0
_SEARCH_RADIUS = (4.5, 8.0)
_BATCH_ELEMENTS = 2**21  # distances at a time: 16 MiB


@dataclass(frozen=True, kw_only=True)
class Superposed:
    """Scores of C-alpha atoms, each under the superposition that is best for it; from 0 to 1, but for the RMSD."""

    tm_score: float
    gdt_ts: float
    gdt_ha: float
    rmsd: float  # Angstrom


def lddt(predicted: Float[np.ndarray, "n 3"], true: Float[np.ndarray, "n 3"], residue: Int[np.ndarray, " n"]) -> float:
    """Return lDDT from 0 to 1, the share of true distances that the prediction preserves (Mariani et al. 2013).

    It is the mean over the limits 0.5, 1, 2 and 4 Angstrom, for distances up to 15 Angstrom between atoms of different
    residues; `residue` numbers the residue of each atom. C-alpha atoms alone give lDDT-CA. 0 if there are no such
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
    """Return the lDDT of each residue by its number from 0, NaN where it has no distances, and the lDDT of all.

    The distances are from the atoms in the mask `of` to those in the mask `to`; None means all atoms. See `lddt`.
    """
    by_residue, whole = (
        _lddt(predicted, true, residue, aggregation=bins, atom_mask=of, partner_mask=to)
        for bins in (residue.astype(np.int64), "all")
    )
    return np.asarray(by_residue, np.float64), 0.0 if np.isnan(whole) else float(whole)


def interface_lddt(
    predicted: Float[np.ndarray, "n 3"], true: Float[np.ndarray, "n 3"], chain: Int[np.ndarray, " n"]
) -> float | None:
    """Return the share of true distances between atoms of different chains that the prediction preserves, 0 to 1.

    As `lddt`, for these distances only; `chain` numbers the chain of each atom. None if there are no such distances.
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
    """A rotation, followed by a shift, that superposes points on others."""

    rotation: Float64[np.ndarray, "3 3"]
    shift: Float64[np.ndarray, " 3"]  # Angstrom

    def apply(self, points: Float[np.ndarray, "*n 3"]) -> Float[np.ndarray, "*n 3"]:
        """Return points after rotation and shift; they may be others than those that were superposed."""
        return (points @ self.rotation.T + self.shift).astype(points.dtype)


def superposition(predicted: Float[np.ndarray, "n 3"], true: Float[np.ndarray, "n 3"]) -> Superposition:
    """Return the rotation and the shift that superpose predicted points on the true ones with the least RMSD."""
    centre, onto = (points.mean(0, dtype=np.float64) for points in (predicted, true))
    rotation = best_rotation((true - onto).T.astype(np.float64) @ (predicted - centre))
    return Superposition(rotation=rotation, shift=onto - rotation @ centre)


def best_rotation(covariance: Float[np.ndarray, "*f 3 3"]) -> Float[np.ndarray, "*f 3 3"]:
    """Return the rotations that superpose centred points x on points y, from the sums of y x^T over the pairs."""
    left, _, right = np.linalg.svd(covariance)
    # Where a reflection would fit better than any rotation, reverse the least important axis.
    left[..., 2] *= np.sign(np.linalg.det(left) * np.linalg.det(right))[..., None]
    return left @ right


def distance_difference(
    predicted: Float[np.ndarray, "n 3"], true: Float[np.ndarray, "n 3"]
) -> Float[np.ndarray, "n n"]:
    """Return by how many Angstrom each pair of points is further apart in the prediction than in the true structure.

    No superposition is needed.
    """
    predicted_distances, true_distances = (
        np.sqrt(np.square(points[:, None] - points[None]).sum(-1)) for points in (predicted, true)
    )
    return predicted_distances - true_distances


def rmsd(predicted: Float[np.ndarray, "n 3"], true: Float[np.ndarray, "n 3"]) -> float:
    """Return the root mean square distance in Angstrom, under the superposition that makes it least."""
    fitted = superposition(predicted, true).apply(predicted.astype(np.float64))
    return float(np.sqrt(np.square(fitted - true).sum(-1).mean()))


def superposed_scores(
    predicted: Float[np.ndarray, "n 3"], true: Float[np.ndarray, "n 3"], length: int | None = None
) -> Superposed:
    """Return TM-score (Zhang & Skolnick 2004), GDT and RMSD of the n C-alpha atoms that both structures have.

    `length` is the number of residues of the true structure, if the prediction lacks some of them; those count as
    wrong.

    As in the TM-score program, superpositions are sought from every fragment of six lengths, each refined on the pairs
    that it brings together. TM-score and each count of GDT are the best over all superpositions. If a predicted
    position is not finite, the scores are 0 and the RMSD is NaN.
    """
    if not np.isfinite(predicted).all():
        return Superposed(tm_score=0.0, gdt_ts=0.0, gdt_ha=0.0, rmsd=float("nan"))
    length = length or len(true)
    search = _Search(predicted, true, scale=tm_scale(length))
    for size in _fragment_sizes(len(true)):
        search.from_fragments(size)
    within = search.within / length
    return Superposed(
        tm_score=float(search.tm_sum / length),
        gdt_ts=float(within[1:].mean()),
        gdt_ha=float(within[:-1].mean()),
        rmsd=rmsd(predicted, true),
    )


def tm_scale(length: int) -> float:
    """Return the distance in Angstrom at which a residue adds half as much to the TM-score of a chain as at 0."""
    return float(max(0.5, 1.24 * np.cbrt(length - 15) - 1.8))


def _fragment_sizes(length: int) -> list[int]:
    least = min(_LEAST_FRAGMENT, length)
    halves = [length >> halvings for halvings in range(5)]
    return [*(size for size in halves if size > least), least]


class _Search:
    """Search for the best scores over many superpositions, which are computed side by side."""

    def __init__(self, predicted: Float[np.ndarray, "n 3"], true: Float[np.ndarray, "n 3"], scale: float) -> None:
        # Centred, so that the differences below do not lose precision.
        self._x, self._y = (points - points.mean(0, dtype=np.float64) for points in (predicted, true))
        self._scale = scale
        self._radius = float(np.clip(scale, *_SEARCH_RADIUS))
        # For each pair: terms whose sums over pairs give the covariance, and terms of its squared distance.
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

    def _refine(self, chosen: Bool[np.ndarray, "f n"]) -> None:
        squared = self._scored(chosen)
        chosen = self._near(squared, self._radius + _FIRST_RADIUS)
        for _ in range(_ROUNDS):
            squared = self._scored(chosen)
            further = self._near(squared, self._radius + _FURTHER_RADIUS)
            # A superposition whose pairs do not change any more is finished.
            chosen = further[(further != chosen).any(1)]
            if not len(chosen):
                break

    def _near(self, squared: Float64[np.ndarray, "f n"], radius: float) -> Bool[np.ndarray, "f n"]:
        """Return masks of the pairs within a radius, which grows by 0.5 Angstrom until it holds three pairs or all."""
        least = min(3, squared.shape[1])
        # The least number of half Angstroms by which the radius of each must grow.
        third = np.sqrt(np.partition(squared, least - 1, axis=1)[:, least - 1])
        wider = np.maximum(0, np.floor((third - radius) / 0.5) + 1)
        return squared < np.square(radius + 0.5 * wider)[:, None]

    def _scored(self, chosen: Bool[np.ndarray, "f n"]) -> Float64[np.ndarray, "f n"]:
        """Return squared distances of all pairs with the chosen ones superposed, and update the best scores."""
        squared = self._distances(chosen)
        self.tm_sum = max(self.tm_sum, float((1 / (1 + squared / self._scale**2)).sum(1).max()))
        self.within = np.maximum(self.within, [(squared <= limit**2).sum(1).max() for limit in _GDT_LIMITS])
        return squared

    def _distances(self, chosen: Bool[np.ndarray, "f n"]) -> Float64[np.ndarray, "f n"]:
        weights = chosen / chosen.sum(1, keepdims=True)
        x, y = weights @ self._x, weights @ self._y
        covariance = (weights @ self._products).reshape(-1, 3, 3) - y[:, :, None] * x[:, None]
        rotation = best_rotation(covariance)
        shift = y - np.einsum("f a b, f b -> f a", rotation, x)
        # |R x + t - y|^2, expanded: a matrix product for all superpositions and pairs.
        turned_shift = np.einsum("f a b, f a -> f b", rotation, shift)
        squared = -rotation.reshape(-1, 9) @ self._products.T + turned_shift @ self._x.T - shift @ self._y.T
        squared *= 2
        squared += self._squares + np.square(shift).sum(1, keepdims=True)
        return np.maximum(squared, 0)
