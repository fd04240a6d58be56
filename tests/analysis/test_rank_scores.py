"""The area under the ROC curve counts pairs in the right order, and its curve has that area."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from helixfold.analysis.rank_scores import auc, roc, spearman, with_interval


@pytest.mark.parametrize("values", [5, 10**6], ids=["ties", "no ties"])
def test_the_area_is_the_share_of_pairs_in_the_right_order(values: int) -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, values, (3, 40)).astype(float), rng.uniform(size=(3, 40)) < 0.3
    found = auc(scores, labels)
    for each, row, label in zip(found, scores, labels, strict=True):
        pairs = [(one > other) + 0.5 * (one == other) for one in row[label] for other in row[~label]]
        assert each == pytest.approx(np.mean(pairs))
        false, true = roc(row, label)
        assert ((false[0], true[0]), (false[-1], true[-1])) == ((0, 0), (1, 1))
        assert np.trapezoid(true, false) == pytest.approx(each)
        assert len(false) == 1 + len(set(row.tolist()))
    assert np.isnan(auc(scores[0], np.ones(40, bool)))
    np.testing.assert_allclose(spearman(scores[:2], scores[1:]), [spearmanr(*scores[k : k + 2])[0] for k in (0, 1)])


def test_intervals_leave_out_resamples_without_a_value() -> None:
    found = with_interval(auc, [0.1, 0.4, 0.35, 0.8], [False, False, True, True])
    assert found is not None
    assert (found.value, found.high) == (0.75, 1)
    assert 0 <= found.low < found.value
    assert with_interval(auc, [0.1, 0.4], [True, True]) is None


def test_a_rank_correlation_is_scipys_and_lies_within_its_interval() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 5, 30).astype(float), rng.integers(0, 5, 30).astype(float)
    found = with_interval(spearman, one.tolist(), other.tolist())
    assert found is not None
    assert found.value == pytest.approx(spearmanr(one, other).statistic)
    assert -1 <= found.low < found.value < found.high <= 1


def test_pairs_in_order_have_no_doubt_and_equal_values_no_correlation() -> None:
    found = with_interval(spearman, range(9), [value**3.0 for value in range(9)])
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((1, 1, 1))
    assert with_interval(spearman, [1, 2, 3], [4.0, 4.0, 4.0]) is None
