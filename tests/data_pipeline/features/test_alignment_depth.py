"""Depth counts rows as its definition says, exactly where it can and closely where it samples."""

import numpy as np
import pytest

from data_pipeline.features.alignment_depth import alignment_depth
from data_pipeline.residues import GAP


def family(rows: int, residues: int, seed: int = 0) -> np.ndarray:
    """A few ancestors, their descendants with mutations, cut at both ends; the target is whole."""
    random = np.random.default_rng(seed)
    ancestors = random.integers(0, 20, (5, residues))
    msa = ancestors[random.integers(0, 5, rows)]
    mutated = random.random((rows, residues)) < random.uniform(0, 0.3, (rows, 1))
    msa[mutated] = random.integers(0, 21, mutated.sum())
    ends = np.sort(random.integers(0, residues // 3 + 1, (rows, 2)))
    place = np.arange(residues)
    outside = (place < ends[:, :1]) | (place >= residues - ends[:, 1:])
    outside[0] = False
    msa[outside] = GAP
    return msa.astype(np.int8)


def weights(msa: np.ndarray) -> np.ndarray:
    found = []
    for row in msa:
        either = (msa != GAP) | (row != GAP)
        identity = ((msa == row) & either).sum(1) / either.sum(1)
        found.append(1 / (identity >= 0.8 - 1e-12).sum())
    return np.array(found)


@pytest.mark.parametrize("residues", [1, 20, 63, 64, 65, 200])
@pytest.mark.parametrize("rows_at_once", [8192, 17])
def test_effective_rows_are_those_of_the_definition(
    residues: int, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_pipeline.features.alignment_depth._ROWS_AT_ONCE", rows_at_once)
    msa = np.unique(family(120, residues), axis=0)
    msa = msa[(msa != GAP).any(1)]
    msa = msa[np.argsort((msa == GAP).any(1), kind="stable")]
    depth, expected = alignment_depth(msa), weights(msa)
    assert depth.rows == len(msa)
    assert depth.effective_rows == pytest.approx(expected.sum())
    np.testing.assert_array_equal(depth.coverage, (msa != GAP).sum(0))
    np.testing.assert_allclose(depth.effective_coverage, expected @ (msa != GAP))


def test_four_fifths_are_just_enough_to_be_the_same() -> None:
    row = np.zeros((1, 10), np.int8)
    for different, effective in ((2, 1.0), (3, 2.0)):
        other = row.copy()
        other[0, :different] = 1
        assert alignment_depth(np.concatenate([row, other])).effective_rows == effective


def test_a_row_that_is_short_is_not_the_same_as_a_long_one() -> None:
    msa = np.zeros((2, 10), np.int8)
    msa[1, :3] = GAP
    assert alignment_depth(msa).effective_rows == 2.0


def test_a_target_alone_is_one_row() -> None:
    depth = alignment_depth(np.arange(20, dtype=np.int8)[None])
    assert (depth.rows, depth.effective_rows) == (1, 1.0)
    assert (depth.coverage == 1).all()


def test_few_comparisons_estimate_what_all_of_them_find() -> None:
    msa = family(1500, 100)
    exact, sampled = (
        alignment_depth(msa),
        alignment_depth(msa, most_comparisons=2 * 1500 * 300),
    )
    assert exact.effective_rows == pytest.approx(weights(msa).sum())
    assert sampled.effective_rows == pytest.approx(exact.effective_rows, rel=0.1)
    np.testing.assert_allclose(sampled.effective_coverage, exact.effective_coverage, rtol=0.1, atol=15)
    np.testing.assert_array_equal(sampled.coverage, exact.coverage)
