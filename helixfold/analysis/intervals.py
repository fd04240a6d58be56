"""Means over targets with bootstrap confidence intervals.

Intervals are the middle 95 % of the values of resamples of the targets (percentile bootstrap, Efron 1979). Values of
one target, such as of its domains, are resampled together, because they are not independent. `RESAMPLES` is the number
of resamples, and `SEED` the seed of their random choice.
"""

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Float, Int

RESAMPLES, SEED = 10_000, 0
_INTERVAL_FRACTION = 0.95
_RESAMPLES_AT_ONCE = 500  # resamples


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value, and the ends `low` and `high` of its 95 % interval."""

    value: float
    low: float
    high: float

    def to_dict(self, name: str = "mean") -> dict[str, float]:
        """Return the numbers by name, rounded to four digits after the point; `name` is the key of the value."""
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
    """Return the indices of targets in all resamples of `count` targets, always the same for a `count`.

    Each array has 500 resamples. Equal resamples allow to compare methods.
    """
    rng = np.random.default_rng([SEED, count])
    return [rng.integers(count, size=(_RESAMPLES_AT_ONCE, count)) for _ in range(RESAMPLES // _RESAMPLES_AT_ONCE)]


def estimate(value: float, draws: Float[np.ndarray, " n"]) -> Estimate:
    """Return a value with the middle 95 % of `draws`, its values in resamples, as its interval."""
    low, high = np.quantile(draws, [(1 - _INTERVAL_FRACTION) / 2, (1 + _INTERVAL_FRACTION) / 2])
    return Estimate(value=value, low=float(low), high=float(high))
