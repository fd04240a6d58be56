"""Forecasts of time and memory by the number of residues, which workers send for their own devices."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a worker has no need of pydantic
    from helixfold.apps.serve.queue.workers import ForecastCurve, WorkerOffers

_MAX_EXPONENT = 60.0  # of a value beyond the points


@dataclass(frozen=True, kw_only=True)
class ForecastBody:
    """Estimated time (without searches) and memory of a job, on the worker that suits it best."""

    seconds: float | None
    peak_bytes: int | None
    available_bytes: int | None
    fits: bool  # False if no worker has the memory
    model: str | None
    device: str | None
    longest: int | None  # residues of the longest chain that fits


def forecast(
    workers: "Iterable[WorkerOffers]",
    *,
    residues: int,
    chains: int,
    model: str | None,
    recycles: int | None,
    count: int,
) -> ForecastBody | None:
    """Return the forecast of a job of `count` predictions; None if no worker with a fitting model was ever heard."""
    found: list[ForecastBody] = []
    for worker in workers:
        name = model or usual_model(worker.models, chains)
        curve = None if name is None else worker.forecasts.get(name)
        if curve is not None and name is not None:
            passes = 1 + (curve.recycles if recycles is None else recycles)
            found.append(_on(worker, name, curve, residues, passes * count))
    return min(found, key=lambda each: (not each.fits, each.seconds or math.inf), default=None)


def usual_model(models: Sequence[str], chains: int) -> str | None:
    """Return the model for a job that names none: one for complexes where there are several chains, else any other."""
    own = [name for name in models if ("multimer" in name) == (chains > 1)]
    return next(iter([*own, *models]), None)


def _on(worker: "WorkerOffers", model: str, curve: "ForecastCurve", residues: int, passes: int) -> ForecastBody:
    seconds = _interpolated([(point[0], point[1]) for point in curve.points], residues)
    peak = _interpolated([(point[0], point[2]) for point in curve.points], residues)
    fits = not curve.longest or residues <= curve.longest
    return ForecastBody(
        seconds=None if seconds is None else passes * seconds,
        # A chain that fits, and would need more in memory, is spilled to disk or to a GPU's host.
        peak_bytes=None if peak is None else int(min(peak, curve.available) if fits and curve.available else peak),
        available_bytes=curve.available or None,
        fits=fits,
        model=model,
        device=worker.device or None,
        longest=curve.longest or None,
    )


def _interpolated(points: Sequence[tuple[float, float]], residues: int) -> float | None:
    """Return the value between two points, or beyond the last two, of a curve that is straight in logarithms."""
    if len(points) < 2:
        return points[0][1] if points else None
    index = next((index for index in range(1, len(points)) if points[index][0] >= residues), len(points) - 1)
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    share = (math.log(max(1, residues)) - math.log(x0)) / (math.log(x1) - math.log(x0))
    exponent = math.log(y0) + max(-4.0, share) * (math.log(y1) - math.log(y0))
    return math.exp(max(-_MAX_EXPONENT, min(exponent, _MAX_EXPONENT)))
