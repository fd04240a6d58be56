"""Means over targets, with the intervals in which other targets of the kind would have put them.

Intervals are the middle 95 % of what resamples of the targets give (the percentile bootstrap, Efron 1979). Values of
one target, such as those of its domains, are drawn together, for they are not independent.
"""

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Float, Int

RESAMPLES, SEED = 10_000, 0
_SHARE = 0.95
_AT_A_TIME = 500  # resamples


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    def to_dict(self, name: str = "mean") -> dict[str, float]:
        """Return the rounded numbers, the value under this name."""
        found = {key: round(value, 4) for key, value in asdict(self).items()}
        return {name: found.pop("value"), **found}


def mean(values: Sequence[float], targets: Sequence[Hashable] | None = None) -> Estimate:
    """Return the mean of values and its interval; values of equal `targets` are drawn together.

    Without `targets` each value is one of its own. The interval of a single target is the value itself.
    """
    each = np.asarray(values, np.float64)
    if targets is None or len(set(targets)) == len(each):
        draws = [each[chosen].mean(-1) for chosen in resamples(len(each))]
    else:
        _, number = np.unique([str(target) for target in targets], return_inverse=True)
        counts, sums = np.bincount(number), np.bincount(number, weights=each)
        draws = [sums[chosen].sum(-1) / counts[chosen].sum(-1) for chosen in resamples(len(counts))]
    return estimate(float(each.mean()), np.concatenate(draws))


def resamples(count: int) -> list[Int[np.ndarray, "draws n"]]:
    """Return indices of resamples of `count` targets, always the same, so that methods are compared on equal ones."""
    rng = np.random.default_rng([SEED, count])
    return [rng.integers(count, size=(_AT_A_TIME, count)) for _ in range(RESAMPLES // _AT_A_TIME)]


def estimate(value: float, draws: Float[np.ndarray, " n"]) -> Estimate:
    """Return a value with the interval that holds the middle 95 % of its resamples."""
    low, high = np.quantile(draws, [(1 - _SHARE) / 2, (1 + _SHARE) / 2])
    return Estimate(value=value, low=float(low), high=float(high))
