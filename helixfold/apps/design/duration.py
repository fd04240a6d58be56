"""Estimate the time of a binder's trajectory by timing one step and one prediction by each model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from helixfold.apps.design.designer import Designer
from helixfold.execution.stages import mean_seconds


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Seconds of a trajectory: of its design, and of the predictions of all redrawn sequences (`checks`).

    `checks` is an upper limit, because predictions stop when enough sequences are accepted.
    """

    design: float
    checks: float


def estimated(designer: Designer, complexes: Sequence[Designer], alone: Sequence[Designer], sequences: int) -> Duration:
    """Time a step and predictions, and return the estimated time of a trajectory of `designer`.

    `sequences` is the number of redrawn sequences. `complexes` and `alone` have a predictor of complexes and one of
    binders alone for each checking model. Relaxation, measures and additional steps of designs with a sheet are not
    included.
    """
    options, start = designer.options, designer.begin(0)
    step = _seconds(lambda: designer.advance(start, 0), designer)
    mutants = math.ceil(int(designer.inputs[0].is_free.sum()) * options.greedy_share)
    greedy = options.greedy_steps * (1 + mutants)
    design = (options.steps - options.greedy_steps) * step + (greedy + 1) * _prediction(designer)
    return Duration(design=design, checks=sequences * sum(map(_prediction, (*complexes, *alone))))


def _prediction(designer: Designer) -> float:
    letters = "".join(chain.placeholder for chain in designer.task.chains)
    return _seconds(lambda: designer.evaluated(letters, designer.begin(0), 0), designer)


def _seconds(action: Callable[[], object], designer: Designer) -> float:
    """Return the shortest time of three calls: the first prepares kernels, and other programs may delay one."""
    return min(mean_seconds(action, device=designer.device) for _ in range(3))
