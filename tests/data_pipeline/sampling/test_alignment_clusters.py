"""Clusters of an alignment are those of scikit-learn and of AF_Cluster, on real alignments and on made-up ones."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.msa import LETTER_TYPES
from data_pipeline.io.errors import InputError
from data_pipeline.residues import GAP, RESTYPES, UNKNOWN
from data_pipeline.sampling import alignment_clusters
from data_pipeline.sampling.alignment_clusters import (
    LEFT_OUT,
    NO_CLUSTER,
    SCANNED_EPS,
    ClusterSettings,
    cluster_alignment,
    one_hot_rows,
    scanned_eps,
)

cluster = pytest.importorskip("sklearn.cluster", reason="needs the package of the extra 'conformations'")
# From the logs that AF_Cluster's authors publish beside their alignments: eps, rows, clusters, rows in none. Their
# script had no tryptophan in its alphabet then, which the script that is published now has.
PUBLISHED = {
    "2hdm_A_A__2JP1": (9.0, 1305, 57, 357),
    "2vfx_L_L__1S2H": (11.5, 1902, 95, 324),
    "4qhf_A_A__4QHF": (10.0, 331, 22, 133),
}
LETTERS = "ACDEFGHIKLMNPQRSTVWY-"


def family(rng: np.random.Generator, copies: int, length: int = 30, changes: int = 2) -> np.ndarray:
    """A sequence and others that differ from it in a few columns."""
    rows = np.repeat(rng.integers(0, 20, (1, length)), copies, axis=0)
    for row in rows[1:]:
        row[rng.choice(length, changes, replace=False)] = rng.integers(0, 20, changes)
    return rows.astype(np.int8)


def rows_of(path: Path) -> list[str]:
    """The aligned columns of each row, read as AF_Cluster's script reads them."""
    with gzip.open(path, "rt") as file:
        records = file.read().split(">")[1:]
    sequences = ["".join(record.splitlines()[1:]) for record in records]
    return ["".join(letter for letter in row if letter.isupper() or letter == "-") for row in sequences]


def encoded(rows: list[str]) -> np.ndarray:
    """One-hot vectors as AF_Cluster's script makes them."""
    letters = np.array([list(row) for row in rows])
    return np.stack([letters == other for other in LETTERS], axis=-1).reshape(len(rows), -1).astype(float)


@pytest.mark.integration
# The deepest alignment runs before each release.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name == "2vfx_L_L__1S2H" else ()) for name in PUBLISHED]
)
def test_labels_are_scikit_learns_and_af_clusters_on_real_alignments(name: str, real_data: Path) -> None:
    eps, count, clusters, alone = PUBLISHED[name]
    rows = rows_of(real_data / "msa" / f"{name}.a3m.gz")
    kept = [row for row in rows[1:] if row.count("-") / len(row) < 0.25]
    assert len(kept) == count
    expected = cluster.DBSCAN(eps=eps, min_samples=3).fit(encoded(kept)).labels_
    msa = LETTER_TYPES[np.array([list(row.encode()) for row in rows])]
    found = cluster_alignment(msa, ClusterSettings(eps=eps))
    np.testing.assert_array_equal(found.labels[found.labels != LEFT_OUT], expected)
    assert (found.labels == LEFT_OUT).sum() == len(rows) - count
    assert (found.count, found.eps) == (expected.max() + 1, eps)
    without = cluster_alignment(np.where(msa == RESTYPES.index("W"), np.int8(UNKNOWN), msa), ClusterSettings(eps=eps))
    assert (without.count, (without.labels == NO_CLUSTER).sum()) == (clusters, alone)


def test_eps_is_the_one_with_most_groups_of_a_quarter_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {3.0: 2, 3.5: 4, 4.0: 7, 4.5: 7, 5.0: 1, 10.5: 1}
    asked: list[tuple[float, int]] = []

    def counted(vectors: np.ndarray, eps: float, min_samples: int) -> np.ndarray:
        asked.append((eps, len(vectors)))
        return np.arange(len(vectors)) % groups.get(eps, 2)

    monkeypatch.setattr(alignment_clusters, "_dbscan", counted)
    assert scanned_eps(np.zeros((101, 4), np.float32), 3) == 4.0
    # One group ends the scan beyond an eps of 10, and no sooner.
    assert asked == [(eps, 25) for eps in SCANNED_EPS if eps <= 10.5]


def test_a_scan_finds_families_the_same_every_time() -> None:
    rng = np.random.default_rng(1)
    families = [family(rng, 40) for _ in range(3)]
    msa = np.concatenate([families[0][:1], *families])
    found, again = (cluster_alignment(msa, ClusterSettings()) for _ in range(2))
    assert found.count == 3
    assert [len(set(found.labels[1 + 40 * number : 41 + 40 * number])) for number in range(3)] == [1, 1, 1]
    np.testing.assert_array_equal(found.labels, again.labels)
    assert found.eps == again.eps
    np.testing.assert_array_equal(found.rows(1), [0, *range(41, 81)])


def test_the_target_and_rows_with_many_gaps_stay_out() -> None:
    rng = np.random.default_rng(2)
    msa = np.concatenate([family(rng, 1), family(rng, 6), family(rng, 1)])
    msa[3, :7], msa[4, :8] = GAP, GAP  # of 30 columns
    found = cluster_alignment(msa, ClusterSettings(eps=4.0))
    assert found.labels[[0, 4]].tolist() == [LEFT_OUT, LEFT_OUT]
    assert found.labels[3] != LEFT_OUT
    assert found.labels[7] == NO_CLUSTER
    np.testing.assert_array_equal(found.rows(0)[:2], [0, 1])
    alone = cluster_alignment(msa[:1], ClusterSettings())
    assert (alone.count, alone.eps) == (0, None)


def test_unknown_residues_are_near_to_all() -> None:
    vectors = one_hot_rows(np.array([[0, 1, UNKNOWN], [0, 2, GAP]], np.int8))
    assert vectors.shape == (2, 63)
    assert vectors.sum(1).tolist() == [2, 3]
    assert np.square(vectors[0] - vectors[1]).sum() == 3


@pytest.mark.parametrize("wrong", [{"eps": 0.0}, {"eps": float("nan")}, {"min_samples": 0}, {"max_gaps": 1.5}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="--cluster-"):
        ClusterSettings(**wrong)  # type: ignore[arg-type]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_pipeline.io.extras.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"--cluster-msa needs sklearn.*pip install 'helixfold\[conformations\]'"):
        cluster_alignment(np.zeros((2, 3), np.int8), ClusterSettings())
