"""Estimate the time of a trajectory of a binder from one step and one prediction of each kind, which are made first."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from helixfold.apps.design.designer import Designer
from helixfold.execution.stages import mean_seconds


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Seconds of a trajectory: of its design, and of the predictions of all redrawn sequences, which may end early."""

    design: float
    checks: float


def estimated(designer: Designer, complexes: Sequence[Designer], alone: Sequence[Designer], sequences: int) -> Duration:
    """Return the estimated time of a trajectory that `designer` makes and whose `sequences` all models predict.

    `complexes` and `alone` predict complexes and binders by each checking model. Relaxation, measures and additional
    steps of designs with a sheet are not included.
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
    """Return the time of a call after a first one, which prepares kernels."""
    action()
    return mean_seconds(action, device=designer.device)
