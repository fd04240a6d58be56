"""Cluster the rows of an alignment by density, so that each cluster can be predicted from by itself.

The procedure is that of AF_Cluster (Wayment-Steele et al. 2024), with scikit-learn's DBSCAN: proteins whose relatives
have different conformations can show one of them in each cluster.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float32, Int, Int8

from data_pipeline.io.errors import InputError
from data_pipeline.io.extras import require
from data_pipeline.residues import GAP, UNKNOWN

# The values of eps that are tried, and the one from which on a single cluster ends the scan.
SCANNED_EPS: Final = tuple(np.arange(3, 20.5, 0.5).tolist())
_LAST_EPS = 10
# The share of the rows that are clustered for each value of eps.
_SCANNED_SHARE = 0.25
# The rows that are tried do not depend on the seed of predictions, so that more seeds use the same clusters.
_SCAN_SEED = 0
# Rows that DBSCAN puts into no cluster.
NO_CLUSTER: Final = -1
# Rows with too many gaps, and the target's own, which are not clustered.
LEFT_OUT: Final = -2


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Settings of DBSCAN on rows of an alignment; the defaults are AF_Cluster's.

    `eps` is the largest distance of neighbours, the root of twice the number of columns in which they differ; None
    tries the values of `SCANNED_EPS`. Raise `InputError` for numbers that make no sense.
    """

    eps: float | None = None
    min_samples: int = 3  # rows within `eps` of a row, itself included, that make it the core of a cluster
    max_gaps: float = 0.25  # share of gaps from which on a row is left out

    def __post_init__(self) -> None:
        if self.eps is not None and not 0 < self.eps < np.inf:
            raise InputError(f"--cluster-eps is a distance above 0, such as 7.5, got {self.eps:g}")
        if self.min_samples < 1:
            raise InputError(f"--cluster-min-samples must be at least 1, got {self.min_samples}")
        if not 0 < self.max_gaps <= 1:
            raise InputError(f"--cluster-max-gaps is a share of gaps, above 0 and at most 1, got {self.max_gaps:g}")

    def __str__(self) -> str:
        eps = "scanned" if self.eps is None else f"{self.eps:g}"
        return f"DBSCAN, eps {eps}, min_samples {self.min_samples}, gaps below {self.max_gaps:g}"


@dataclass(frozen=True, kw_only=True)
class AlignmentClusters:
    """The cluster of each row of an alignment: its number from 0, `NO_CLUSTER` or `LEFT_OUT`; and eps as it was used.

    `eps` is None where no row is left to be clustered.
    """

    labels: Int[np.ndarray, "n"]
    eps: float | None

    @property
    def count(self) -> int:
        """Return the number of clusters."""
        return int(self.labels.max(initial=NO_CLUSTER)) + 1

    def rows(self, cluster: int) -> Int[np.ndarray, "m"]:
        """Return the rows of the alignment of a cluster: the target's own, then those of the cluster."""
        return np.concatenate([[0], np.flatnonzero(self.labels == cluster)])


def cluster_alignment(msa: Int8[np.ndarray, "n r"], settings: ClusterSettings) -> AlignmentClusters:
    """Cluster the rows of an alignment, of which the first is the target's and stays out.

    Rows with `max_gaps` of gaps or more stay out, too. Distances are Euclidean, between rows as one-hot vectors of 20
    residue types and the gap in each column; an unknown residue is a vector of zeros. Unless it is given, eps is the
    value for which a quarter of the rows, drawn anew for each, falls into most groups; all rows without a cluster are a
    group. Raise `InputError` if scikit-learn is not installed.
    """
    require("conformations", "sklearn", action="--cluster-msa")
    labels = np.full(len(msa), LEFT_OUT)
    rows = 1 + np.flatnonzero((msa[1:] == GAP).mean(1) < settings.max_gaps)
    if not len(rows):
        return AlignmentClusters(labels=labels, eps=None)
    vectors = one_hot_rows(msa[rows])
    eps = scanned_eps(vectors, settings.min_samples) if settings.eps is None else settings.eps
    labels[rows] = _dbscan(vectors, eps, settings.min_samples)
    return AlignmentClusters(labels=labels, eps=eps)


def one_hot_rows(msa: Int8[np.ndarray, "n r"]) -> Float32[np.ndarray, "n c"]:
    """Return rows of an alignment as vectors of 21 numbers for each column."""
    kinds = np.array([kind for kind in range(GAP + 1) if kind != UNKNOWN], msa.dtype)
    return (msa[:, :, None] == kinds).astype(np.float32).reshape(len(msa), -1)


def scanned_eps(vectors: Float32[np.ndarray, "n c"], min_samples: int) -> float:
    """Return the value of `SCANNED_EPS` that puts a quarter of the rows into most groups; the least of several.

    The scan ends where all rows are one group, beyond an eps of 10.
    """
    rng = np.random.default_rng(_SCAN_SEED)
    quarter = max(1, round(_SCANNED_SHARE * len(vectors)))
    groups: list[int] = []
    for eps in SCANNED_EPS:
        chosen = rng.choice(len(vectors), quarter, replace=False)
        groups.append(len(np.unique(_dbscan(vectors[chosen], eps, min_samples))))
        if eps > _LAST_EPS and groups[-1] == 1:
            break
    return float(SCANNED_EPS[int(np.argmax(groups))])


def _dbscan(vectors: Float32[np.ndarray, "n c"], eps: float, min_samples: int) -> Int[np.ndarray, "n"]:
    # Takes long to import.
    from sklearn.cluster import DBSCAN  # noqa: PLC0415

    return np.asarray(DBSCAN(eps=eps, min_samples=min_samples).fit(vectors).labels_)
