"""Rank correlations, with the intervals in which other samples of the kind would have put them."""

from collections.abc import Sequence

from helixfold.analysis.intervals import Estimate
from helixfold.analysis.rank_scores import spearman as rank_correlation
from helixfold.analysis.rank_scores import with_interval

# Fewer pairs say nothing about a correlation.
_LEAST_PAIRS = 3


def spearman(one: Sequence[float], other: Sequence[float]) -> Estimate | None:
    """Return Spearman's rank correlation of pairs of values, from -1 to 1, and its 95 % interval.

    The interval is that of resamples of the pairs (see `intervals`). None for fewer than three pairs, or if all values
    of one side are equal.
    """
    pairs = [[float(value) for value in values] for values in (one, other)]
    return with_interval(rank_correlation, *pairs) if len(one) >= _LEAST_PAIRS else None
