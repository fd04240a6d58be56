"""Rank correlations, with the intervals in which other samples of the kind would have put them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from helixfold.analysis.intervals import Estimate, estimate, resamples

# Fewer pairs say nothing about a correlation.
LEAST_PAIRS = 3


def spearman(one: Sequence[float], other: Sequence[float]) -> Estimate | None:
    """Return Spearman's rank correlation of pairs of values, from -1 to 1, and its 95 % interval.

    The interval is that of resamples of the pairs (see `intervals`). None for fewer than three pairs, or if all values
    of one side are equal.
    """
    first, second = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if len(first) < LEAST_PAIRS:
        return None
    value = float(_correlations(first[None], second[None])[0])
    if np.isnan(value):
        return None
    draws = np.concatenate([_correlations(first[chosen], second[chosen]) for chosen in resamples(len(first))])
    return estimate(value, draws[~np.isnan(draws)])


def _correlations(one: Float[np.ndarray, "d n"], other: Float[np.ndarray, "d n"]) -> Float[np.ndarray, " d"]:
    """Return the rank correlation of each row; NaN where a row has equal values only. Equal values share a rank."""
    from scipy.stats import rankdata  # noqa: PLC0415 (takes long to import)

    first, second = (rankdata(values, axis=1) for values in (one, other))
    first, second = (ranks - ranks.mean(1, keepdims=True) for ranks in (first, second))
    scale = np.sqrt(np.square(first).sum(1) * np.square(second).sum(1))
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(scale > 0, (first * second).sum(1) / np.where(scale > 0, scale, 1), np.nan))
