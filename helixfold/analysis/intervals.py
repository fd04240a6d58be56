"""Means over targets with bootstrap confidence intervals.

Intervals are the middle 95 % of the values of resamples of the targets (percentile bootstrap, Efron 1979). Values of
one target, such as of its domains, are resampled together, because they are not independent.
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
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def to_dict(self, name: str = "mean") -> dict[str, float]:
        """Return the rounded numbers; `name` is the key of the value."""
        numbers = {key: round(value, 4) for key, value in asdict(self).items()}
        return {name: numbers.pop("value"), **numbers}


def mean(values: Sequence[float], targets: Sequence[Hashable] | None = None) -> Estimate:
    """Return the mean of values and its interval; values with equal `targets` are resampled together.

    Without `targets`, each value is its own target. The interval of a single target is the value itself.
    """
    each = np.asarray(values, np.float64)
    if targets is None or len(set(targets)) == len(each):
        draws = [each[indices].mean(-1) for indices in resamples(len(each))]
    else:
        _, target_index = np.unique([str(target) for target in targets], return_inverse=True)
        counts, sums = np.bincount(target_index), np.bincount(target_index, weights=each)
        draws = [sums[indices].sum(-1) / counts[indices].sum(-1) for indices in resamples(len(counts))]
    return estimate(float(each.mean()), np.concatenate(draws))


def resamples(count: int) -> list[Int[np.ndarray, "draws n"]]:
    """Return indices of resamples of `count` targets, always the same, to compare methods on equal samples."""
    rng = np.random.default_rng([SEED, count])
    return [rng.integers(count, size=(_AT_A_TIME, count)) for _ in range(RESAMPLES // _AT_A_TIME)]


def estimate(value: float, draws: Float[np.ndarray, " n"]) -> Estimate:
    """Return a value with the middle 95 % of its resamples as interval."""
    low, high = np.quantile(draws, [(1 - _SHARE) / 2, (1 + _SHARE) / 2])
    return Estimate(value=value, low=float(low), high=float(high))
