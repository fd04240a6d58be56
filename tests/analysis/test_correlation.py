"""Rank correlations are SciPy's, and their intervals those of resampled pairs."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from helixfold.analysis.correlation import spearman


def test_it_is_scipys_with_equal_values_too() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 5, 30).astype(float), rng.integers(0, 5, 30).astype(float)
    found = spearman(one.tolist(), other.tolist())
    assert found is not None
    assert found.value == pytest.approx(spearmanr(one, other).statistic)
    assert -1 <= found.low < found.value < found.high <= 1


def test_pairs_in_order_have_no_doubt_and_few_or_equal_ones_no_correlation() -> None:
    found = spearman(range(9), [value**3 for value in range(9)])
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((1, 1, 1))
    assert spearman([1, 2], [1, 2]) is None
    assert spearman([1, 2, 3], [4, 4, 4]) is None
