"""Cluster the rows of an alignment by density, for predictions from each cluster alone.

The procedure is AF_Cluster (Wayment-Steele et al. 2024), with scikit-learn's DBSCAN. If the homologs of a protein have
different conformations, each cluster may yield one of them. `SCANNED_EPS` are the values of DBSCAN's eps that are
tried. `NO_CLUSTER` is the label of rows that DBSCAN puts in no cluster, and `LEFT_OUT` of rows that are not clustered.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float32, Int, Int8

from data_pipeline.io.errors import InputError
from data_pipeline.io.extras import require
from data_pipeline.residues import GAP, UNKNOWN

# The scanned values of eps, and the value from which a single cluster ends the scan.
SCANNED_EPS: Final = tuple(np.arange(3, 20.5, 0.5).tolist())
_LAST_EPS = 10
# Fraction of the rows that are clustered for each value of eps.
_SCANNED_ROW_FRACTION = 0.25
# The scan does not depend on the seed of predictions, so all seeds use the same clusters.
_SCAN_SEED = 0
# Label of rows without a cluster.
NO_CLUSTER: Final = -1
# Label of rows that are not clustered: the target, and rows with too many gaps.
LEFT_OUT: Final = -2


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Settings of DBSCAN on rows of an alignment; the defaults are AF_Cluster's.

    `eps` is the max distance of neighbours, the square root of twice the number of columns in which they differ; None
    scans the values in `SCANNED_EPS`. `min_samples` is the min number of rows within `eps` of a row, including itself,
    for a core of a cluster. Rows with at least the fraction `max_gaps` of gaps are left out. Raise `InputError` for
    invalid values.
    """

    eps: float | None = None
    min_samples: int = 3  # min rows within `eps` of a row, including itself, for a core of a cluster
    max_gaps: float = 0.25  # rows with at least this fraction of gaps are left out

    def __post_init__(self) -> None:
        if self.eps is not None and not 0 < self.eps < np.inf:
            raise InputError(f"--cluster-eps must be a distance above 0, such as 7.5, got {self.eps:g}")
        if self.min_samples < 1:
            raise InputError(f"--cluster-min-samples must be at least 1, got {self.min_samples}")
        if not 0 < self.max_gaps <= 1:
            raise InputError(f"--cluster-max-gaps must be a fraction above 0 and at most 1, got {self.max_gaps:g}")

    def __str__(self) -> str:
        eps = "scanned" if self.eps is None else f"{self.eps:g}"
        return f"DBSCAN, eps {eps}, min_samples {self.min_samples}, gaps below {self.max_gaps:g}"


@dataclass(frozen=True, kw_only=True)
class AlignmentClusters:
    """The cluster index (`labels`) of each row of an alignment, from 0, or `NO_CLUSTER` or `LEFT_OUT`.

    `eps` is the value of DBSCAN that was used. It is None without rows to cluster.
    """

    labels: Int[np.ndarray, "n"]
    eps: float | None

    @property
    def count(self) -> int:
        """Number of clusters."""
        return int(self.labels.max(initial=NO_CLUSTER)) + 1

    def rows(self, cluster: int) -> Int[np.ndarray, "m"]:
        """Return the row indices of a cluster's alignment: the target, then the rows of the cluster."""
        return np.concatenate([[0], np.flatnonzero(self.labels == cluster)])


def cluster_alignment(msa: Int8[np.ndarray, "n r"], settings: ClusterSettings) -> AlignmentClusters:
    """Cluster the rows of an alignment without the first, which is the target, and without rows with many gaps.

    Distances are Euclidean, between rows as one-hot vectors of 20 residue types and the gap in each column; an unknown
    residue is a vector of zeros. Without `settings.eps`, the eps with the most groups in a random quarter of the rows
    is used, where all rows without a cluster count as one group. Raise `InputError` if scikit-learn is not installed.
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
    """Return the rows of an alignment as one-hot vectors with 21 numbers per column: 20 residue types and the gap.

    An unknown residue is 21 zeros.
    """
    kinds = np.array([kind for kind in range(GAP + 1) if kind != UNKNOWN], msa.dtype)
    return (msa[:, :, None] == kinds).astype(np.float32).reshape(len(msa), -1)


def scanned_eps(vectors: Float32[np.ndarray, "n c"], min_samples: int) -> float:
    """Return the smallest value in `SCANNED_EPS` with the max number of groups of a random quarter of the rows.

    `vectors` are the rows of `one_hot_rows`, and `min_samples` is as in `ClusterSettings`. Rows without a cluster count
    as one group, and each value has another quarter; the result is the same in each call. The scan ends above an eps of
    10 when all rows are in one group.
    """
    rng = np.random.default_rng(_SCAN_SEED)
    quarter = max(1, round(_SCANNED_ROW_FRACTION * len(vectors)))
    groups: list[int] = []
    for eps in SCANNED_EPS:
        sampled = rng.choice(len(vectors), quarter, replace=False)
        groups.append(len(np.unique(_dbscan(vectors[sampled], eps, min_samples))))
        if eps > _LAST_EPS and groups[-1] == 1:
            break
    return float(SCANNED_EPS[int(np.argmax(groups))])


def _dbscan(vectors: Float32[np.ndarray, "n c"], eps: float, min_samples: int) -> Int[np.ndarray, "n"]:
    """Return the cluster of each vector, -1 if none; `eps` is the largest distance of neighbours."""
    # The import is slow.
    from sklearn.cluster import DBSCAN  # noqa: PLC0415

    return np.asarray(DBSCAN(eps=eps, min_samples=min_samples).fit(vectors).labels_)
