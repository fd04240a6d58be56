"""Find the domains of a chain from its predicted aligned error (PAE): parts that are confidently placed as a unit.

Clustering residues by PAE is an idea of Tristan Croll (2021), whose program finds communities in a graph. Here residues
and groups of them are joined as long as the mean error between two groups is low (average linkage). This has one
parameter, is deterministic, and corresponds to the blocks in a picture of the PAE. `JOINED_BELOW` is the mean error (Å)
below which two groups are joined.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

# Angstrom: groups are joined as long as the mean error between them, in both directions, is below this.
JOINED_BELOW = 8.0
# pLDDT and residues: a long stretch with "very low" pLDDT (AlphaFold DB) is disordered, not a badly placed loop.
_FLEXIBLE_PLDDT, _FLEXIBLE_RESIDUES = 50.0, 10
# Residues: minimum size of a domain, maximum gap that is filled between two parts of a domain, and minimum length of a
# stretch that belongs to a domain.
_MIN_DOMAIN_RESIDUES, _MAX_GAP_RESIDUES, _MIN_STRETCH_RESIDUES = 20, 9, 4
# Longer chains are clustered in blocks of neighbouring residues, because the work grows with the square.
_MAX_POINTS = 2000
_NO_DOMAIN = -1


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A domain: ascending indices (from 0) of residues that are confidently placed relative to each other."""

    residues: Int[np.ndarray, " n"]

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """Indices of the first and last residue of each part that is contiguous in the chain."""
        parts = np.split(self.residues, np.flatnonzero(np.diff(self.residues) > 1) + 1)
        return [(int(part[0]), int(part[-1])) for part in parts]


def find_domains(pae: Float[np.ndarray, "r r"], plddt: Float[np.ndarray, " r"]) -> tuple[Domain, ...]:
    """Return the domains of a chain in the order of their first residues; the tuple may be empty.

    `pae` is in Å, `plddt` from 0 to 100. A domain has at least 20 residues. Groups of residues are joined to one domain
    as long as their mean error is below 8 Å. Stretches of less than 4 residues, and stretches of at least 10 residues
    with pLDDT below 50, belong to no domain. Gaps of up to 9 residues between two parts of a domain are filled.
    """
    rigid = np.flatnonzero(~_flexible(plddt))
    labels = np.full(len(plddt), _NO_DOMAIN)
    if len(rigid) >= _MIN_DOMAIN_RESIDUES:
        labels[rigid] = _clusters(pae, rigid)
    labels = _with_gaps_filled(_without_specks(_without_small(labels)))
    labels = _without_small(labels)
    domains = [np.flatnonzero(labels == label) for label in np.unique(labels) if label != _NO_DOMAIN]
    return tuple(Domain(residues=residues) for residues in sorted(domains, key=lambda residues: int(residues[0])))


def mean_error(pae: Float[np.ndarray, "r r"], aligned: Domain, scored: Domain) -> float:
    """Return the mean error (Angstrom) of the residues of `scored` if the chain is aligned on residues of `aligned`.

    If both are the same domain, the errors of residues relative to themselves do not count.
    """
    block = pae[np.ix_(aligned.residues, scored.residues)]
    if aligned is scored:
        return float(block[~np.eye(len(block), dtype=bool)].mean(dtype=np.float64))
    return float(block.mean(dtype=np.float64))


def _flexible(plddt: Float[np.ndarray, " r"]) -> Bool[np.ndarray, " r"]:
    """Return where pLDDT is low for at least `_FLEXIBLE_RESIDUES` residues in a row."""
    flexible = plddt < _FLEXIBLE_PLDDT
    for low, start, stop in _stretches(flexible):
        if low and stop - start < _FLEXIBLE_RESIDUES:
            flexible[start:stop] = False
    return flexible


def _clusters(pae: Float[np.ndarray, "r r"], residues: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return a cluster label for each residue."""
    block = -(-len(residues) // _MAX_POINTS)
    starts = np.arange(0, len(residues), block)
    sizes = np.diff(starts, append=len(residues))
    # Means are computed for one block of rows at a time, to avoid a copy of the PAE of a long chain.
    errors = np.stack(
        [np.add.reduceat(pae[residues[start : start + block]].mean(0)[residues], starts) / sizes for start in starts]
    )
    return np.repeat(_average_linkage((errors + errors.T).astype(np.float64) / 2, JOINED_BELOW), sizes)


def _average_linkage(distances: Float[np.ndarray, "n n"], below: float) -> Int[np.ndarray, " n"]:
    """Return cluster labels of points; clusters are joined while the mean distance of two is less than `below`.

    A chain of clusters, each the nearest neighbour of the previous one, ends in two clusters that are joined (Murtagh
    1983). SciPy computes the same clusters, but its import takes longer than clustering a few hundred residues.
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
            nearest = before  # of equally near clusters, so that the chain ends
        if distances[last, nearest] >= below:
            # This cluster is final: joining others does not bring any of them nearer.
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
    """Return the labels without domains below `_MIN_DOMAIN_RESIDUES` residues."""
    names, counts = np.unique(labels, return_counts=True)
    return np.where(np.isin(labels, names[counts < _MIN_DOMAIN_RESIDUES]), _NO_DOMAIN, labels)


def _without_specks(labels: Int[np.ndarray, " r"]) -> Int[np.ndarray, " r"]:
    """Return the labels without stretches shorter than `_MIN_STRETCH_RESIDUES`, which get no domain."""
    cleaned = labels.copy()
    for _, start, stop in _stretches(labels):
        if stop - start < _MIN_STRETCH_RESIDUES:
            cleaned[start:stop] = _NO_DOMAIN
    return cleaned


def _with_gaps_filled(labels: Int[np.ndarray, " r"]) -> Int[np.ndarray, " r"]:
    """Add short loops between two parts of a domain to the domain, even if their error is larger."""
    filled = labels.copy()
    runs = _stretches(labels)
    for (before, *_), (label, start, stop), (after, *_) in zip(runs, runs[1:], runs[2:], strict=False):
        if label == _NO_DOMAIN and before == after and stop - start <= _MAX_GAP_RESIDUES:
            filled[start:stop] = before
    return filled


def _stretches(labels: np.ndarray) -> list[tuple[int, int, int]]:
    """Return label, start and stop of each run of equal labels."""
    edges = [0, *(np.flatnonzero(np.diff(labels.astype(np.int64))) + 1).tolist(), len(labels)]
    return [(int(labels[start]), start, stop) for start, stop in itertools.pairwise(edges)]
