"""Estimate how long the rest of a batch will take from the times of its finished targets."""

from collections.abc import Iterable, Sequence

import numpy as np


def remaining_seconds(
    finished: Sequence[tuple[int, float]], targets: Iterable[tuple[int, int]], at_once: int = 1
) -> float | None:
    """Return the seconds for targets, given as (residues, predictions), of which so many are folded at once.

    `finished` are (residues, seconds) of the predictions made so far; without any, return None. They are fitted by
    a N^2 + b N^3 of N residues: the pair stream, and triangles over it. Neither a nor b is negative, and errors count
    relative to the time: a batch begins with its short chains.
    """
    if not finished:
        return None
    # Takes long to import, and only a batch of several targets needs it.
    from scipy.optimize import nnls  # noqa: PLC0415

    lengths, seconds = zip(*finished, strict=True)
    terms = _terms(lengths) / np.array(seconds)[:, None]
    # Scaled, both are one size to the solver. One target alone is fitted by either, and the first is taken.
    scale = terms.max(axis=0)
    factors = nnls(terms / scale, np.ones(len(terms)))[0] / scale
    return sum(predictions * float(_terms([residues])[0] @ factors) for residues, predictions in targets) / at_once


def _terms(lengths: Sequence[int]) -> np.ndarray:
    return np.array([(residues**2, residues**3) for residues in lengths], dtype=np.float64)


def format_duration(seconds: float) -> str:
    """Return a duration in one suitable unit, such as 40 s, 12 min, 3.5 h or 2 d."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"


def format_estimate(seconds: float) -> str:
    """Return an estimate of a duration: "about 12 min", or "under 10 s", for starting alone takes seconds."""
    return "under 10 s" if seconds < 10 else f"about {format_duration(seconds)}"
