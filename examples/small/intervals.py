"""Means and correlations over chains, with the intervals in which other chains of the kind would have put them.

Intervals are the middle 95 % of what resamples of the chains give (the percentile bootstrap, Efron 1979). Chains are
drawn whole, for the residues of one are not independent.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Float

RESAMPLES, SEED = 10_000, 0
_SHARE = 0.95
_AT_A_TIME = 500  # resamples


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number and its interval."""

    value: float
    low: float
    high: float

    def to_dict(self, name: str = "mean") -> dict[str, float]:
        """Rounded, with the number under a name of its own."""
        found = {key: round(value, 4) for key, value in asdict(self).items()}
        return {name: found.pop("value"), **found}


def mean(values: Sequence[float]) -> Estimate:
    """The mean over chains; of paired differences just as well."""
    each = np.asarray(values, np.float64)
    draws = [each[chosen].mean(-1) for chosen in _resamples(len(each))]
    return _estimate(float(each.mean()), np.concatenate(draws))


def pearson(pairs: Sequence[tuple[Float[np.ndarray, "_"], Float[np.ndarray, "_"]]]) -> Estimate | None:
    """Correlation of two quantities over the residues of all chains; None where one of them never varies.

    Give each chain two arrays of one number to correlate over chains.
    """
    sums = np.array(
        [[len(x), x.sum(), y.sum(), (x * x).sum(), (y * y).sum(), (x * y).sum()] for x, y in _centred(pairs)]
    )
    whole = float(_correlation(sums.sum(0)))
    if not np.isfinite(whole):
        return None
    draws = np.concatenate([_correlation(sums[chosen].sum(1)) for chosen in _resamples(len(sums))])
    return _estimate(whole, draws[np.isfinite(draws)])


def _centred(
    pairs: Sequence[tuple[Float[np.ndarray, "_"], Float[np.ndarray, "_"]]],
) -> list[tuple[Float[np.ndarray, "_"], Float[np.ndarray, "_"]]]:
    """About the means of all, so that sums of squares keep their digits."""
    x, y = (np.concatenate([np.asarray(pair[side], np.float64) for pair in pairs]).mean() for side in (0, 1))
    return [(np.asarray(first, np.float64) - x, np.asarray(second, np.float64) - y) for first, second in pairs]


def _correlation(sums: Float[np.ndarray, "*n 6"]) -> Float[np.ndarray, "*n"]:
    count, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread_x, spread_y = xx - x * x / count, yy - y * y / count
    with np.errstate(invalid="ignore", divide="ignore"):
        # What rounding leaves of no spread at all is none.
        spread = np.where((spread_x > 1e-12 * count) & (spread_y > 1e-12 * count), spread_x * spread_y, np.nan)
        found: np.ndarray = (xy - x * y / count) / np.sqrt(spread)
    return found


def _resamples(count: int) -> list[np.ndarray]:
    """The same for the same number of chains, so that methods are compared on the same resamples."""
    rng = np.random.default_rng([SEED, count])
    return [rng.integers(count, size=(_AT_A_TIME, count)) for _ in range(RESAMPLES // _AT_A_TIME)]


def _estimate(value: float, draws: Float[np.ndarray, "_"]) -> Estimate:
    low, high = np.quantile(draws, [(1 - _SHARE) / 2, (1 + _SHARE) / 2])
    return Estimate(value=value, low=float(low), high=float(high))
