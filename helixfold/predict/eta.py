"""Estimate how long the rest of a batch will take from the times of its finished targets."""

from collections.abc import Iterable, Sequence

import numpy as np


class TimeEstimator:
    """A fit of the seconds of a prediction as a N^2 + b N^3 of its N residues: the pair stream, and triangles over it.

    Neither a nor b is negative, and errors count relative to the time: a batch begins with its short chains.
    """

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._seconds: list[float] = []

    def add(self, residues: int, seconds: float, predictions: int = 1) -> None:
        """Add the time of a finished target; one without predictions is ignored."""
        if predictions > 0:
            self._lengths.append(residues)
            self._seconds.append(max(seconds, 1e-3) / predictions)

    def remaining_seconds(self, targets: Iterable[tuple[int, int]], at_once: int = 1) -> float | None:
        """Return the seconds for targets, given as (residues, predictions), of which so many are folded at once.

        Return None before any time was added.
        """
        if not self._lengths:
            return None
        factors = self._fitted()
        seconds = sum(predictions * float(_terms([residues])[0] @ factors) for residues, predictions in targets)
        return seconds / at_once

    def _fitted(self) -> np.ndarray:
        # Takes long to import, and only a batch of several targets needs it.
        from scipy.optimize import nnls  # noqa: PLC0415

        terms = _terms(self._lengths) / np.array(self._seconds)[:, None]
        # Scaled, both are one size to the solver. One target alone is fitted by either, and the first is taken.
        scale = terms.max(axis=0)
        return nnls(terms / scale, np.ones(len(terms)))[0] / scale


def _terms(lengths: Sequence[int]) -> np.ndarray:
    residues = np.array(lengths, dtype=np.float64)
    return np.stack([residues**2, residues**3], axis=1)


def format_duration(seconds: float) -> str:
    """Return a duration in one suitable unit, such as 40 s, 12 min, 3.5 h or 2 d."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"
