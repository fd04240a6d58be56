"""Means and correlations over chains, with bootstrap confidence intervals.

Intervals are computed as in `helixfold.analysis.intervals`. Whole chains are resampled, because the residues of a chain
are not independent.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from helixfold.analysis.intervals import RESAMPLES, Estimate, estimate, mean, resamples

__all__ = ["RESAMPLES", "Estimate", "mean", "pearson"]


def pearson(pairs: Sequence[tuple[Float[np.ndarray, "_"], Float[np.ndarray, "_"]]]) -> Estimate | None:
    """Return the correlation of two quantities over the residues of all chains; None if one of them is constant.

    To correlate over chains, pass two arrays of one number for each chain.
    """
    sums = np.array(
        [[len(x), x.sum(), y.sum(), (x * x).sum(), (y * y).sum(), (x * y).sum()] for x, y in _centred(pairs)]
    )
    whole = float(_correlation(sums.sum(0)))
    if not np.isfinite(whole):
        return None
    draws = np.concatenate([_correlation(sums[indices].sum(1)) for indices in resamples(len(sums))])
    return estimate(whole, draws[np.isfinite(draws)])


def _centred(
    pairs: Sequence[tuple[Float[np.ndarray, "_"], Float[np.ndarray, "_"]]],
) -> list[tuple[Float[np.ndarray, "_"], Float[np.ndarray, "_"]]]:
    """Subtract the overall means, so that sums of squares keep their precision."""
    x, y = (np.concatenate([np.asarray(pair[side], np.float64) for pair in pairs]).mean() for side in (0, 1))
    return [(np.asarray(first, np.float64) - x, np.asarray(second, np.float64) - y) for first, second in pairs]


def _correlation(sums: Float[np.ndarray, "*n 6"]) -> Float[np.ndarray, "*n"]:
    count, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread_x, spread_y = xx - x * x / count, yy - y * y / count
    with np.errstate(invalid="ignore", divide="ignore"):
        # A spread that is only rounding error counts as zero.
        spread = np.where((spread_x > 1e-12 * count) & (spread_y > 1e-12 * count), spread_x * spread_y, np.nan)
        correlation: np.ndarray = (xy - x * y / count) / np.sqrt(spread)
    return correlation
