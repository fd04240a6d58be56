"""Find a chain's domains, parts that are placed as one with confidence, in its predicted aligned error (PAE).

Tristan Croll (2021) had the idea of clustering residues by their PAE; his program finds communities in a graph. Here
residues, and then groups of them, are joined as long as the mean error between two groups stays low (average linkage).
This has one number to choose, always gives the same answer, and can be read off a picture of the PAE.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

# Angstrom: groups are joined as long as the mean error between them, over both directions, is below this.
JOINED_BELOW = 8.0
# Residues: the AlphaFold DB's "very low" pLDDT over a long stretch is disorder rather than a badly placed loop.
_FLEXIBLE_PLDDT, _FLEXIBLE_RUN = 50.0, 10
# Residues: the shortest domain, the longest gap that is filled between two parts of one domain, and the shortest
# stretch that counts as part of a domain.
_LEAST_DOMAIN, _LONGEST_GAP, _LEAST_STRETCH = 20, 9, 4
# Longer chains are clustered by blocks of neighbouring residues, because the work grows with the square.
_MOST_POINTS = 2000
_NONE = -1


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A domain: residues, by index in the chain, that are placed with confidence relative to each other."""

    residues: Int[np.ndarray, " n"]

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """Indices of the first and the last residue of each part that is continuous in the chain."""
        parts = np.split(self.residues, np.flatnonzero(np.diff(self.residues) > 1) + 1)
        return [(int(part[0]), int(part[-1])) for part in parts]


def find_domains(pae: Float[np.ndarray, "r r"], plddt: Float[np.ndarray, " r"]) -> tuple[Domain, ...]:
    """Return the domains of a chain in the order of their first residues; there may be none.

    `pae` is in Angstrom, `plddt` from 0 to 100. A domain has at least 20 residues. A residue belongs to no domain if it
    is in a stretch of at least 10 residues with pLDDT below 50, or if its error relative to every domain is 8 Angstrom
    or more.
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
    """Return the mean error in Angstrom of the residues of `scored` when the chain is aligned on those of `aligned`.

    If both are the same domain, a residue's error relative to itself does not count.
    """
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
    """Return a cluster label for each of these residues."""
    block = -(-len(residues) // _MOST_POINTS)
    starts = np.arange(0, len(residues), block)
    sizes = np.diff(starts, append=len(residues))
    # Means over blocks are taken a block of rows at a time, so that no copy of a long chain's PAE is made.
    errors = np.stack(
        [np.add.reduceat(pae[residues[start : start + block]].mean(0)[residues], starts) / sizes for start in starts]
    )
    return np.repeat(_average_linkage((errors + errors.T).astype(np.float64) / 2, JOINED_BELOW), sizes)


def _average_linkage(distances: Float[np.ndarray, "n n"], below: float) -> Int[np.ndarray, " n"]:
    """Return a label for each point's cluster; clusters are joined while the mean distance of two is less than `below`.

    A chain of clusters, each the nearest of the one before, ends in two that are joined (Murtagh 1983). SciPy makes the
    same clusters, but takes longer to import than a chain of a few hundred residues takes to be clustered.
    """
    distances = distances.copy()
    np.fill_diagonal(distances, np.inf)
    labels, sizes = np.arange(len(distances)), np.ones(len(distances))
    is_open = np.ones(len(distances), bool)
    chain: list[int] = []
    while is_open.any():
        if not chain:
            chain = [int(is_open.argmax())]
        last = chain[-1]
        nearest = int(distances[last].argmin())
        before = chain[-2] if len(chain) > 1 else None
        if before is not None and distances[last, before] <= distances[last, nearest]:
            nearest = before  # of clusters that are equally near, lest the chain never end
        if distances[last, nearest] >= below:
            # It stays as it is: joining others brings none of them nearer.
            is_open[last] = False
            distances[last], distances[:, last] = np.inf, np.inf
            chain.pop()
        elif nearest != before:
            chain.append(nearest)
        else:
            weights = np.array([sizes[last], sizes[nearest]]) / (sizes[last] + sizes[nearest])
            mean = weights @ distances[[last, nearest]]
            mean[[last, nearest]] = np.inf
            distances[nearest], distances[:, nearest] = mean, mean
            distances[last], distances[:, last] = np.inf, np.inf
            sizes[nearest] += sizes[last]
            labels[labels == last] = nearest
            is_open[last] = False
            chain = chain[:-2]
    return labels


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
    """Give short loops between two parts of a domain that domain's label, even if they are less well placed."""
    filled = labels.copy()
    runs = _stretches(labels)
    for (before, *_), (own, start, stop), (after, *_) in zip(runs, runs[1:], runs[2:], strict=False):
        if own == _NONE and before == after and stop - start <= _LONGEST_GAP:
            filled[start:stop] = before
    return filled


def _stretches(labels: np.ndarray) -> list[tuple[int, int, int]]:
    """Return label, start and stop of each run of equal labels."""
    edges = [0, *(np.flatnonzero(np.diff(labels.astype(np.int64))) + 1).tolist(), len(labels)]
    return [(int(labels[start]), start, stop) for start, stop in itertools.pairwise(edges)]
