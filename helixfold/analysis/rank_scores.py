"""Quality of rankings: the area under the ROC curve and Spearman's correlation."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float

from helixfold.analysis.intervals import Estimate, estimate, resamples


def auc(scores: Float[np.ndarray, "*b n"], labels: Bool[np.ndarray, "*b n"]) -> Float[np.ndarray, "*b"]:
    """Return the area under the ROC curve: the probability that a positive has a higher score than a negative.

    Equal scores count half. NaN if all labels are equal.
    """
    positive = labels.sum(-1)
    negative = labels.shape[-1] - positive
    above = (ranks(scores) * labels).sum(-1) - positive * (positive + 1) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(above / (positive * negative))


def spearman(x: Float[np.ndarray, "*b n"], y: Float[np.ndarray, "*b n"]) -> Float[np.ndarray, "*b"]:
    """Return Spearman's rank correlation; NaN if all of `x` or all of `y` are equal."""
    x, y = (ranks(each) - (each.shape[-1] + 1) / 2 for each in (x, y))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1)))


def ranks(values: Float[np.ndarray, "*b n"]) -> Float[np.ndarray, "*b n"]:
    """Return the rank of each value from 1; equal values have their mean rank."""
    from scipy.stats import rankdata  # noqa: PLC0415 (it takes long to import)

    return np.asarray(rankdata(values, axis=-1))


def with_interval(
    score: Callable[[np.ndarray, np.ndarray], np.ndarray],
    predicted: Sequence[float],
    true: Sequence[float] | Sequence[bool],
) -> Estimate | None:
    """Return `score(predicted, true)` with its 95 % interval over resamples of the pairs; None if it is not finite.

    `score` must also take arrays of several resamples, with the pairs on the last axis. Resamples for which it is not
    defined, such as without a positive label, do not count.
    """
    x, y = np.asarray(predicted, np.float64), np.asarray(true)
    value = float(score(x, y))
    if not np.isfinite(value):
        return None
    draws = np.concatenate([score(x[indices], y[indices]) for indices in resamples(len(x))])
    return estimate(value, draws[np.isfinite(draws)])


def roc(
    scores: Float[np.ndarray, " n"], labels: Bool[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return the ROC curve: the false and the true positive rates (0 to 1) at thresholds from high to low.

    The curve starts with 0 and 0; equal scores share a threshold.
    """
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # of equal scores
    true = np.cumsum(labels[order])[last]
    false = last + 1 - true
    return np.append(0.0, false / max(1, false[-1])), np.append(0.0, true / max(1, true[-1]))
