"""Alignments of training examples: the target's row is never changed, and rows and columns go as asked."""

import numpy as np
import pytest

from data_pipeline.io.config import ConfigError
from data_pipeline.residues import GAP
from data_pipeline.sampling.alignment_augmentation import AlignmentAugmentation, augmented_alignment

RNG = np.random.default_rng(0)
MSA = RNG.integers(0, 21, (200, 50), np.int8)
DELETIONS = RNG.integers(0, 3, (200, 50)).astype(np.int32)


def drawn(settings: AlignmentAugmentation, seed: int) -> tuple[np.ndarray, np.ndarray]:
    msa, deletions = augmented_alignment(MSA, DELETIONS, settings, np.random.default_rng(seed))
    assert msa.dtype == MSA.dtype
    assert deletions.dtype == DELETIONS.dtype
    assert msa.shape == deletions.shape
    np.testing.assert_array_equal(msa[0], MSA[0])
    return msa, deletions


def test_nothing_is_drawn_without_augmentation() -> None:
    rng = np.random.default_rng(1)
    msa, deletions = augmented_alignment(MSA, DELETIONS, AlignmentAugmentation(), rng)
    assert msa is MSA
    assert deletions is DELETIONS
    assert rng.random() == np.random.default_rng(1).random()


def test_depths_are_spread_evenly_over_their_logarithm() -> None:
    depths = np.array([len(drawn(AlignmentAugmentation(random_depth=True), seed)[0]) for seed in range(600)])
    assert depths.min() == 1
    assert depths.max() > 150
    assert np.mean(depths < np.sqrt(201)) == pytest.approx(0.5, abs=0.07)


def test_a_share_of_the_examples_is_alone() -> None:
    settings = AlignmentAugmentation(alone_fraction=0.3)
    depths = [len(drawn(settings, seed)[0]) for seed in range(400)]
    assert set(depths) == {1, 200}
    assert np.mean(np.array(depths) == 1) == pytest.approx(0.3, abs=0.07)


def test_dropped_columns_are_gaps_in_all_rows_but_the_targets() -> None:
    shares = []
    for seed in range(200):
        msa, deletions = drawn(AlignmentAugmentation(most_dropped_columns=0.6), seed)
        dropped = (msa[1:] == GAP).all(axis=0)
        np.testing.assert_array_equal(msa[:, ~dropped], MSA[:, ~dropped])
        assert not deletions[1:, dropped].any()
        shares.append(dropped.mean())
    assert np.mean(shares) == pytest.approx(0.3, abs=0.05)
    assert max(shares) < 0.85


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="alone_fraction"):
        AlignmentAugmentation(alone_fraction=-0.1)
