"""Rank correlations with confidence intervals."""

from collections.abc import Sequence

from helixfold.analysis.intervals import Estimate
from helixfold.analysis.rank_scores import spearman as rank_correlation
from helixfold.analysis.rank_scores import with_interval

# Minimum number of pairs for a correlation.
_MIN_PAIRS = 3


def spearman(one: Sequence[float], other: Sequence[float]) -> Estimate | None:
    """Return Spearman's rank correlation of pairs of values (-1 to 1) with its 95 % interval.

    The interval is from resamples of the pairs (see `intervals`). Return None for fewer than three pairs, or if all
    values of one side are equal.
    """
    pairs = [[float(value) for value in values] for values in (one, other)]
    return with_interval(rank_correlation, *pairs) if len(one) >= _MIN_PAIRS else None
