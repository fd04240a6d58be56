"""From MSA to model input: deterministic steps equal AlphaFold's, random ones have its probabilities."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.residues import GAP, MASKED, UNKNOWN
from data_pipeline.sampling import msa as steps

STORED = Path(__file__).parents[2] / "parity" / "data" / "pipeline_transforms.npz"
ALPHAFOLD = {"uniform_prob": 0.1, "profile_prob": 0.1, "same_prob": 0.1}


@pytest.fixture(scope="module")
def alphafold() -> dict[str, np.ndarray]:
    with np.load(STORED) as arrays:
        return dict(arrays)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parity
def test_profile_equals_alphafolds(alphafold: dict[str, np.ndarray]) -> None:
    np.testing.assert_allclose(steps.msa_profile(alphafold["msa"]), alphafold["profile"], atol=1e-6)


@pytest.mark.parity
def test_cluster_assignment_equals_alphafolds(alphafold: dict[str, np.ndarray]) -> None:
    assignment = steps.nearest_clusters(alphafold["masked_msa"], alphafold["sampled_extra_msa"])
    np.testing.assert_array_equal(assignment, alphafold["assignment"])


@pytest.mark.parity
def test_cluster_summaries_equal_alphafolds(alphafold: dict[str, np.ndarray]) -> None:
    centres, deletions = alphafold["masked_msa"], alphafold["sampled_deletion_matrix"]
    counted = steps.count_members(
        alphafold["sampled_extra_msa"],
        alphafold["sampled_extra_deletion_matrix"],
        alphafold["assignment"],
        len(centres),
    )
    profile, deletion_mean = steps.cluster_means(centres, deletions, *counted)
    np.testing.assert_allclose(profile, alphafold["cluster_profile"], atol=1e-6)
    np.testing.assert_allclose(deletion_mean, alphafold["cluster_deletion_mean"], rtol=1e-6)


@pytest.mark.parity
def test_model_features_equal_alphafolds(alphafold: dict[str, np.ndarray]) -> None:
    feature = steps.msa_feature(
        alphafold["masked_msa"],
        alphafold["sampled_deletion_matrix"],
        alphafold["cluster_profile"],
        alphafold["cluster_deletion_mean"],
    )
    np.testing.assert_allclose(feature, alphafold["msa_feat"], atol=1e-6)
    deletions = alphafold["cropped_extra_deletion_matrix"]
    np.testing.assert_array_equal(steps.has_deletion(deletions), alphafold["extra_has_deletion"])
    np.testing.assert_allclose(steps.deletion_value(deletions), alphafold["extra_deletion_value"], atol=1e-6)
    np.testing.assert_array_equal(steps.target_feature(alphafold["aatype"]), alphafold["target_feat"])


@pytest.mark.parity
def test_msa_feature_equals_alphafold_2_3(reference: Path) -> None:
    with np.load(reference / "modules" / "functions.npz") as functions:
        clusters = "mm_nearest_neighbor_clusters"
        feature = steps.msa_feature(
            functions[f"{clusters}|in:msa"].astype(np.int8),
            functions[f"{clusters}|in:deletion_matrix"].astype(np.int32),
            functions[f"{clusters}|out:cluster_profile"],
            functions[f"{clusters}|out:cluster_deletion_mean"],
        )
        np.testing.assert_allclose(feature, functions["mm_create_msa_feat|out:result"], atol=1e-6)


@pytest.mark.parametrize(("s", "e", "r"), [(1, 1, 1), (7, 50, 30), (40, 333, 600)])
def test_nearest_cluster_is_the_argmax_of_agreeing_one_hots(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, s: int, e: int, r: int
) -> None:
    monkeypatch.setattr(steps, "_CHUNK", 1000)
    # Few residue types, so that there are ties; gaps and masks are frequent.
    kinds = np.array([0, 1, UNKNOWN, GAP, MASKED], np.int8)
    centres, rows = kinds[rng.integers(0, 5, (s, r))], kinds[rng.integers(0, 4, (e, r))]
    weights = np.eye(23)[:, : UNKNOWN + 1]
    agreement = np.einsum("s r c, e r c -> e s", weights[centres], weights[rows])
    np.testing.assert_array_equal(steps.nearest_clusters(centres, rows), agreement.argmax(axis=1))


@pytest.mark.parametrize("sizes", [(1, 1, 3), (3, 20, 7), (5, 40, 4), (4, 3, 9)])
@pytest.mark.parametrize("chunk", [1, 50, 2**18])
def test_cluster_features_are_those_of_loops_over_the_rows(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int], chunk: int
) -> None:
    """Some clusters have no row, and deletions of centres, of rows and of targets differ."""
    s, e, r = sizes
    monkeypatch.setattr(steps, "_CHUNK", chunk)
    centres, rows = (rng.integers(0, 23, (n, r)).astype(np.int8) for n in (s, e))
    rows[rows == MASKED] = GAP
    deletions, row_deletions = (rng.choice([0, 0, 1, 3, 300], (n, r)).astype(np.int16) for n in (s, e))
    assignment = rng.choice([0, s - 1], e).astype(np.int32)
    found = steps.count_members(rows, row_deletions, assignment, s)
    profile, mean = steps.cluster_means(centres, deletions, *found)
    feature = steps.msa_feature(centres, deletions, profile, mean)
    for cluster in range(s):
        members = [row for row in range(e) if assignment[row] == cluster]
        assert found[2][cluster] == len(members)
        for column in range(r):
            letters = [int(centres[cluster, column]), *(int(rows[row, column]) for row in members)]
            counts = [int(deletions[cluster, column]), *(int(row_deletions[row, column]) for row in members)]
            shares = [letters.count(kind) / len(letters) for kind in range(23)]
            one_hot = [float(kind == letters[0]) for kind in range(23)]
            own, average = (2 / math.pi * math.atan(each / 3) for each in (counts[0], sum(counts) / len(counts)))
            expected = [*one_hot, float(counts[0] > 0), own, *shares, average]
            np.testing.assert_allclose(feature[cluster, column], expected, atol=2e-5)


@pytest.mark.parametrize("n", [1, 2, 300])
def test_the_profile_is_the_share_of_each_type_over_all_chunks(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.setattr(steps, "_CHUNK", 13)
    msa = rng.choice(np.array([0, 3, 19, UNKNOWN, GAP], np.int8), (n, 5), p=[0.5, 0.2, 0.1, 0.1, 0.1])
    expected = [[[*msa[:, column]].count(kind) / n for kind in range(22)] for column in range(5)]
    np.testing.assert_allclose(steps.msa_profile(msa), expected, atol=1e-6)


@pytest.mark.parametrize("rows_at_once", [1, 4, 100])
def test_rows_of_every_part_join_the_first_of_equally_near_clusters(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr(steps, "_ROWS_AT_ONCE", rows_at_once)
    centres = np.array([[0, 0, 0, GAP], [0, 0, MASKED, 1], [2, 2, 2, 1], [UNKNOWN, 2, 2, 1]], np.int8)
    rows = np.array(
        [[0, 0, 5, 5], [0, 0, GAP, GAP], [2, 2, 2, 5], [7, 2, 2, 1], [UNKNOWN, 5, 5, 1], [5, 5, 5, GAP], [GAP] * 4],
        np.int8,
    )
    # The first of two with 2, gaps do not agree with gaps, and no agreement is the first cluster.
    assert steps.nearest_clusters(centres, rows).tolist() == [0, 0, 2, 2, 3, 0, 0]
    long_rows = rng.integers(0, 2, (9, 700)).astype(np.int8)
    long_centres = rng.integers(0, 2, (5, 700)).astype(np.int8)
    expected = [max(range(5), key=lambda k, row=row: sum(row == long_centres[k])) for row in long_rows]
    assert steps.nearest_clusters(long_centres, long_rows).tolist() == expected


def test_cluster_summaries_without_extra_rows_are_the_centres() -> None:
    centres = np.array([[0, GAP, MASKED]], np.int8)
    none = np.zeros((0, 3), np.int8)
    assert steps.nearest_clusters(centres, none).shape == (0,)
    counted = steps.count_members(none, none.astype(np.int32), np.zeros(0, np.int32), 1)
    profile, deletion_mean = steps.cluster_means(centres, np.array([[2, 0, 1]]), *counted)
    np.testing.assert_allclose(profile, np.eye(23)[centres], atol=2e-6)
    np.testing.assert_allclose(deletion_mean, [[2, 0, 1]], rtol=2e-6)


@given(n=st.integers(1, 60), blocks=st.integers(0, 6), seed=st.integers(0, 99))
def test_block_deletion_keeps_the_target_and_only_takes_away(n: int, blocks: int, seed: int) -> None:
    deletion = steps.BlockDeletion(blocks=blocks)
    kept = steps.rows_after_block_deletion(n, deletion, np.random.default_rng(seed))
    assert kept[0] == 0
    assert (np.diff(kept) > 0).all()
    assert kept[-1] < n
    assert len(kept) >= max(1, n - blocks * int(0.3 * n))
    # What is gone are stretches of neighbours, at most as many as there are blocks (the target may part one).
    gone = np.setdiff1d(np.arange(n), kept)
    assert (np.diff(gone) > 1).sum() + bool(len(gone)) <= blocks + 1


def test_blocks_begin_anywhere_and_end_with_the_alignment(rng: np.random.Generator) -> None:
    deletion = steps.BlockDeletion(blocks=1, fraction_per_block=0.25)
    firsts = []
    for _ in range(4000):
        kept = steps.rows_after_block_deletion(20, deletion, rng)
        gone = np.setdiff1d(np.arange(20), kept)
        assert len(gone) in (min(5, 20 - gone[0]), 4)
        firsts.append(gone[0])
    counts = np.bincount(firsts, minlength=20)
    assert counts[0] == 0
    # A block that begins at the target leaves the target: it looks as if it began at the next row.
    np.testing.assert_allclose(counts[1:], [400, *[200] * 18], atol=90)


def test_the_number_of_blocks_may_be_random(rng: np.random.Generator) -> None:
    deletion = steps.BlockDeletion(blocks=1, randomize_blocks=True)
    lengths = [len(steps.rows_after_block_deletion(100, deletion, rng)) for _ in range(2000)]
    assert np.mean(np.array(lengths) == 100) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("settings", [{"blocks": -1}, {"fraction_per_block": 1.1}], ids=str)
def test_impossible_blocks_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"(blocks must be at least 0|fraction_per_block must be within 0\.\.1), got"):
        steps.BlockDeletion(**settings)


def test_random_rows_keep_the_target_and_their_order(rng: np.random.Generator) -> None:
    counts = np.zeros(9)
    for _ in range(4000):
        rows = steps.random_rows(9, 5, rng)
        assert len(rows) == 5
        assert rows[0] == 0
        assert (np.diff(rows) > 0).all()
        counts[rows] += 1
    np.testing.assert_allclose(counts[1:], 2000, atol=160)
    assert steps.random_rows(3, 5, rng).tolist() == [0, 1, 2]


def test_rows_are_split_into_centres_led_by_the_target_and_the_rest(rng: np.random.Generator) -> None:
    chosen, rest = steps.sample_rows(10, 4, rng)
    assert chosen[0] == 0
    assert len(chosen) == 4
    assert sorted([*chosen, *rest]) == list(range(10))
    chosen, rest = steps.sample_rows(1, 4, rng)
    assert (chosen.tolist(), rest.tolist()) == ([0], [])


def test_every_row_but_the_target_is_a_centre_equally_often(rng: np.random.Generator) -> None:
    counts = np.zeros(9)
    for _ in range(4000):
        counts += np.bincount(steps.sample_rows(9, 5, rng)[0], minlength=9)
    assert counts[0] == 4000
    # Each other row is chosen with probability 1/2: standard deviation 32.
    np.testing.assert_allclose(counts[1:], 2000, atol=160)


def test_extra_rows_are_cropped_without_repetition_and_in_random_order(rng: np.random.Generator) -> None:
    kept = np.stack([steps.crop_extra_rows(6, 4, rng) for _ in range(3000)])
    assert kept.shape == (3000, 4)
    assert all(len(set(rows)) == 4 for rows in kept.tolist())
    np.testing.assert_allclose(np.bincount(kept[:, 0], minlength=6), 500, atol=110)
    assert sorted(steps.crop_extra_rows(3, 10, rng)) == [0, 1, 2]


def _replacement_probabilities(before: np.ndarray, profile: np.ndarray) -> np.ndarray:
    """Return the published probability with which each class replaces each position (positions, 23)."""
    residues = np.eye(23)[:20].sum(axis=0) / 20
    by_profile, same, mask = np.pad(profile, ((0, 0), (0, 1))), np.eye(23)[before], np.eye(23)[MASKED]
    return 0.1 * residues + 0.1 * by_profile + 0.1 * same + 0.7 * mask


def test_masking_hides_the_fraction_and_replaces_with_the_published_probabilities(rng: np.random.Generator) -> None:
    msa = rng.integers(0, 22, (500, 300), np.int8)
    msa[:, 0] = 5
    profile = steps.msa_profile(msa)
    masked, hidden = steps.mask_msa(msa, profile, fraction=0.15, **ALPHAFOLD, rng=rng)
    np.testing.assert_array_equal(masked[~hidden], msa[~hidden])
    assert hidden.mean() == pytest.approx(0.15, abs=5 * np.sqrt(0.15 * 0.85 / hidden.size))
    expected = _replacement_probabilities(msa[hidden], profile[np.nonzero(hidden)[1]])
    counts = np.bincount(masked[hidden], minlength=23)
    deviation = np.sqrt((expected * (1 - expected)).sum(axis=0))
    assert (np.abs(counts - expected.sum(axis=0)) <= 5 * deviation + 1e-9).all()
    assert np.mean(masked[hidden] == msa[hidden]) == pytest.approx(0.1 + 0.1 / 22 + 0.1 / 22, abs=0.012)


@pytest.mark.parametrize("residue", [0, 3, UNKNOWN, GAP])
def test_each_class_replaces_a_residue_with_its_own_probability(residue: int, rng: np.random.Generator) -> None:
    profile = np.zeros((2, 22), np.float32)
    profile[0, [3, GAP]] = 0.25, 0.75
    profile[1, residue] = 1
    msa = np.full((40_000, 2), residue, np.int8)
    masked, _ = steps.mask_msa(msa, profile, fraction=1.0, **ALPHAFOLD, rng=rng)
    found = np.stack([np.bincount(column, minlength=23) for column in masked.T]) / len(msa)
    expected = _replacement_probabilities(np.array([residue, residue]), profile)
    np.testing.assert_allclose(found, expected, atol=5 * np.sqrt(0.25 / len(msa)))
    assert not found[expected == 0].any()
    np.testing.assert_allclose(found[expected == 0.005], 0.005, atol=0.0025)


def test_a_draw_from_the_profile_is_from_its_own_column(rng: np.random.Generator) -> None:
    columns = rng.integers(0, 22, 50)
    profile_only = {"uniform_prob": 0.0, "profile_prob": 1.0, "same_prob": 0.0}
    masked, _ = steps.mask_msa(
        np.zeros((4, 50), np.int8), np.eye(22, dtype=np.float32)[columns], fraction=1.0, **profile_only, rng=rng
    )
    assert (masked == columns).all()


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, 0.0), (1.0, 1.0)])
def test_masking_nothing_or_everything(rng: np.random.Generator, fraction: float, expected: float) -> None:
    msa = rng.integers(0, 22, (5, 6), np.int8)
    nothing_else = {"uniform_prob": 0.0, "profile_prob": 0.0, "same_prob": 0.0}
    masked, hidden = steps.mask_msa(msa, steps.msa_profile(msa), fraction=fraction, **nothing_else, rng=rng)
    assert hidden.mean() == expected
    assert np.mean(masked == MASKED) == expected


def test_residues_become_unknown_but_gaps_stay(rng: np.random.Generator) -> None:
    msa = np.where(rng.random((200, 100)) < 0.3, np.int8(GAP), np.int8(4))
    replaced, aatype = steps.replace_with_unknown(msa, np.full(100, 4, np.int32), 0.25, rng)
    np.testing.assert_array_equal(replaced == GAP, msa == GAP)
    assert np.mean(replaced[msa == 4] == UNKNOWN) == pytest.approx(0.25, abs=0.02)
    assert set(aatype.tolist()) == {4, UNKNOWN}
    assert replaced.dtype == np.int8
