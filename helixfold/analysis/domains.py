"""Find a chain's domains in its predicted aligned error: parts that are placed with confidence as one.

The idea of clustering residues by their PAE is Tristan Croll's (2021), whose program looks for communities in a graph.
Here residues, and then groups of them, are joined as long as the mean error between two groups stays low (average
linkage), which has one number to choose, gives the same answer every time, and can be read off the PAE's picture.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

# Angstrom: groups are joined as long as the mean error between them, in both directions, is below.
JOINED_BELOW = 8.0
# Residues: the AlphaFold DB's "very low" pLDDT over a long stretch is disorder rather than a badly placed loop.
_FLEXIBLE_PLDDT, _FLEXIBLE_RUN = 50.0, 10
# Residues: the shortest domain, the longest stretch that a domain on both sides of it takes in, the shortest stretch
# that counts as part of a domain.
_LEAST_DOMAIN, _LONGEST_GAP, _LEAST_STRETCH = 20, 9, 4
# Residues that are clustered one by one; of a longer chain, blocks of neighbours are. The work grows with the square.
_MOST_POINTS = 2000
_NONE = -1


@dataclass(frozen=True, kw_only=True)
class Domain:
    """Residues, by index, that are placed with confidence relative to each other."""

    residues: Int[np.ndarray, " n"]

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """Indices of the first and the last residue of each part that is continuous in the chain."""
        parts = np.split(self.residues, np.flatnonzero(np.diff(self.residues) > 1) + 1)
        return [(int(part[0]), int(part[-1])) for part in parts]


def find_domains(pae: Float[np.ndarray, "r r"], plddt: Float[np.ndarray, " r"]) -> tuple[Domain, ...]:
    """The domains of a chain in the order in which they begin; residues may belong to none, and there may be none.

    `pae` is in Angstrom, `plddt` 0 to 100. A domain has at least 20 residues. What belongs to none are stretches of at
    least 10 residues with pLDDT below 50, and residues whose error relative to every domain is 8 Angstrom or more.
    """
    rigid = np.flatnonzero(~_flexible(plddt))
    labels = np.full(len(plddt), _NONE)
    if len(rigid) >= _LEAST_DOMAIN:
        labels[rigid] = _clusters(pae, rigid)
    labels = _with_gaps_filled(_without_specks(_without_small(labels)))
    labels = _without_small(labels)
    found = [np.flatnonzero(labels == label) for label in np.unique(labels) if label != _NONE]
    return tuple(Domain(residues=residues) for residues in sorted(found, key=lambda residues: int(residues[0])))


def mean_error(pae: Float[np.ndarray, "r r"], aligned: Domain, scored: Domain) -> float:
    """Mean error in Angstrom of one domain's residues when aligned on another's, or on the domain's own others."""
    block = pae[np.ix_(aligned.residues, scored.residues)]
    if aligned is scored:
        return float(block[~np.eye(len(block), dtype=bool)].mean(dtype=np.float64))
    return float(block.mean(dtype=np.float64))


def _flexible(plddt: Float[np.ndarray, " r"]) -> Bool[np.ndarray, " r"]:
    found = plddt < _FLEXIBLE_PLDDT
    for low, start, stop in _stretches(found):
        if low and stop - start < _FLEXIBLE_RUN:
            found[start:stop] = False
    return found


def _clusters(pae: Float[np.ndarray, "r r"], residues: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """A label for each of these residues."""
    block = -(-len(residues) // _MOST_POINTS)
    starts = np.arange(0, len(residues), block)
    sizes = np.diff(starts, append=len(residues))
    # Means over blocks, a block of rows at a time: nothing of the size of the PAE is made of a long chain.
    errors = np.stack(
        [np.add.reduceat(pae[residues[start : start + block]].mean(0)[residues], starts) / sizes for start in starts]
    )
    errors = (errors + errors.T) / 2
    np.fill_diagonal(errors, 0)
    if len(errors) == 1:
        return np.zeros(len(residues), np.int64)
    # Takes long to import, and only a chain that is folded needs it.
    from scipy.cluster.hierarchy import fcluster, linkage  # noqa: PLC0415
    from scipy.spatial.distance import squareform  # noqa: PLC0415

    joined = linkage(squareform(errors.astype(np.float64), checks=False), "average")
    return np.repeat(fcluster(joined, np.nextafter(JOINED_BELOW, 0), "distance").astype(np.int64), sizes)


def _without_small(labels: Int[np.ndarray, " r"]) -> Int[np.ndarray, " r"]:
    names, counts = np.unique(labels, return_counts=True)
    return np.where(np.isin(labels, names[counts < _LEAST_DOMAIN]), _NONE, labels)


def _without_specks(labels: Int[np.ndarray, " r"]) -> Int[np.ndarray, " r"]:
    cleaned = labels.copy()
    for _, start, stop in _stretches(labels):
        if stop - start < _LEAST_STRETCH:
            cleaned[start:stop] = _NONE
    return cleaned


def _with_gaps_filled(labels: Int[np.ndarray, " r"]) -> Int[np.ndarray, " r"]:
    """Loops that are less well placed than the domain from which they come and to which they return belong to it."""
    filled = labels.copy()
    runs = _stretches(labels)
    for (before, *_), (own, start, stop), (after, *_) in zip(runs, runs[1:], runs[2:], strict=False):
        if own == _NONE and before == after and stop - start <= _LONGEST_GAP:
            filled[start:stop] = before
    return filled


def _stretches(labels: np.ndarray) -> list[tuple[int, int, int]]:
    """Label, start and stop of each run of equal labels."""
    edges = [0, *(np.flatnonzero(np.diff(labels.astype(np.int64))) + 1).tolist(), len(labels)]
    return [(int(labels[start]), start, stop) for start, stop in itertools.pairwise(edges)]
