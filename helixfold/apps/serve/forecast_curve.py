"""Estimates of a job's time and memory, interpolated from the curves that workers send for their own devices."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a worker does not need pydantic
    from helixfold.apps.serve.queue.workers import ForecastCurve, WorkerOffers

_MAX_EXPONENT = 60.0  # limits extrapolated values


@dataclass(frozen=True, kw_only=True)
class ForecastBody:
    """Estimated time (without searches) and memory of a job, on the fastest of the workers whose memory suffices.

    `peak_bytes` and `available_bytes` are the memory that tensors need, and that the worker has for them. `model` and
    `device` are the names of the model and of the worker's device. A value is None if the worker did not send it.
    """

    seconds: float | None  # of all predictions together
    peak_bytes: int | None
    available_bytes: int | None
    fits: bool  # False if no worker has enough memory
    model: str | None
    device: str | None
    longest: int | None  # residues of the longest chain or complex that fits


def estimate_job(
    workers: "Iterable[WorkerOffers]",
    *,
    residues: int,
    chains: int,
    model: str | None,
    recycles: int | None,
    count: int,
) -> ForecastBody | None:
    """Estimate the time and memory of a job of `count` predictions on the most suitable of `workers`.

    This is the fastest worker on which the job fits, or the fastest of all if it fits on none. Return None if no
    worker has sent estimates for the model. `residues` and `chains` are totals of the job. `model` of None is the
    default model (see `usual_model`), and `recycles` of None is the model's default.
    """
    estimates: list[ForecastBody] = []
    for worker in workers:
        name = model or usual_model(worker.models, chains)
        curve = None if name is None else worker.forecasts.get(name)
        if curve is not None and name is not None:
            iterations = 1 + (curve.recycles if recycles is None else recycles)
            estimates.append(_estimate_on(worker, name, curve, residues, iterations * count))
    return min(estimates, key=lambda each: (not each.fits, each.seconds or math.inf), default=None)


def usual_model(models: Sequence[str], chains: int) -> str | None:
    """Return the default model for a job: the first multimer model for several chains, else the first monomer model.

    If there is no such model, return the first of `models`; None if there are no models.
    """
    suitable = [name for name in models if ("multimer" in name) == (chains > 1)]
    return next(iter([*suitable, *models]), None)


def _estimate_on(
    worker: "WorkerOffers", model: str, curve: "ForecastCurve", residues: int, iterations: int
) -> ForecastBody:
    """Estimate the time of this many recycling iterations, and the memory, on one worker by its curve."""
    seconds = _interpolated([(point[0], point[1]) for point in curve.points], residues)
    peak = _interpolated([(point[0], point[2]) for point in curve.points], residues)
    fits = not curve.longest or residues <= curve.longest
    return ForecastBody(
        seconds=None if seconds is None else iterations * seconds,
        # If a chain fits although its peak exceeds the memory, its tensors are spilled to disk or to the GPU's host.
        peak_bytes=None if peak is None else int(min(peak, curve.available) if fits and curve.available else peak),
        available_bytes=curve.available or None,
        fits=fits,
        model=model,
        device=worker.device or None,
        longest=curve.longest or None,
    )


def _interpolated(points: Sequence[tuple[float, float]], residues: int) -> float | None:
    """Interpolate or extrapolate a curve linearly in the logarithms of both axes; None without points."""
    if len(points) < 2:
        return points[0][1] if points else None
    index = next((index for index in range(1, len(points)) if points[index][0] >= residues), len(points) - 1)
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    relative_position = (math.log(max(1, residues)) - math.log(x0)) / (math.log(x1) - math.log(x0))
    exponent = math.log(y0) + max(-4.0, relative_position) * (math.log(y1) - math.log(y0))
    return math.exp(max(-_MAX_EXPONENT, min(exponent, _MAX_EXPONENT)))
