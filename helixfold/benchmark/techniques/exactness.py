"""How far results are from those that plain PyTorch computes in float32, and how far they may be."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# Least deviations that count, by result: its difference from the true one by its norm, and its length along the true
# one. Updates are nearly signs of gradients, so where a gradient is noise, they are too.
_LOOSE = {"update": (0.2, 2e-3)}
_STRICT = (1e-4, 1e-4)
# The same for lower precision. Its errors may be twice those of plain PyTorch if that is more; they have no direction,
# so lengths must agree better.
_LOW = (2e-3, 5e-3)
_LOOSE_LOW = {"update": (0.5, 2e-2)}
_TIMES_PLAIN = 2.0

Results = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """Deviation of one result from the true one, both as vectors.

    `error` is the norm of their difference and `stretch` the error of the length along the true one, both relative to
    the true one's norm.
    """

    error: float
    stretch: float


def deviations(found: Results, true: Results) -> dict[str, Deviation]:
    """Return the deviation of each result."""
    made = {}
    for name, right in true.items():
        x, y = found[name].double().flatten(), right.double().flatten()
        square = y.dot(y)
        made[name] = Deviation(
            error=float(torch.linalg.vector_norm(x - y) / square.sqrt()), stretch=abs(float(x.dot(y) / square) - 1)
        )
    return made


def faults(found: Mapping[str, Deviation]) -> Iterator[str]:
    """Yield what deviates more in float32 than rounding explains."""
    for name, deviation in found.items():
        yield from _faults(name, deviation, *_LOOSE.get(name, _STRICT))


def faults_of_lower_precision(found: Mapping[str, Deviation], plain: Mapping[str, Deviation]) -> Iterator[str]:
    """Yield what deviates more than twice as much as plain PyTorch in the same precision does."""
    for name, deviation in found.items():
        error, stretch = _LOOSE_LOW.get(name, _LOW)
        yield from _faults(
            name,
            deviation,
            max(error, _TIMES_PLAIN * plain[name].error),
            max(stretch, _TIMES_PLAIN * plain[name].stretch),
        )


def _faults(name: str, found: Deviation, error: float, stretch: float) -> Iterator[str]:
    # A comparison with NaN is false.
    if not found.error <= error:
        yield f"{name} is off by {found.error:.1e}, {error:.1e} is allowed"
    elif not found.stretch <= stretch:
        yield f"{name} is too long or too short by {found.stretch:.1e}, {stretch:.1e} is allowed"
