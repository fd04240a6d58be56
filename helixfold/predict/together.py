"""Fold short targets of about the same size in the same passes.

On a GPU, passes of short chains wait for the host to launch their operators, and take as long for many chains as for
one. Each target keeps its own files, its own end of recycling and its own failure.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

from helixfold.execution.recorded_passes import LAUNCH_BOUND_RESIDUES
from helixfold.execution.stages import Stages
from helixfold.folding.planned import fold_together
from helixfold.folding.prediction import Prediction
from helixfold.ops.card import card_of
from helixfold.planning.executors import Plan, fit_together
from helixfold.predict.jobs import Job, RunSettings
from helixfold.predict.target import FoldRequest, TargetSteps, fold_request, target_steps
from helixfold.write.results import FinishedPrediction

# The most targets of a lot on a GPU.
AT_ONCE = 64
# Lengths of targets that are folded together round up to the same multiple of this.
_LENGTH_STEP = 32
# The predictions of a target, best first, or the error by which it failed.
Outcome = list[FinishedPrediction] | Exception


class TargetUnderWay:
    """A target under way: the prediction that it needs next, or once it has ended its outcome."""

    def __init__(self, steps: TargetSteps) -> None:
        self._steps = steps
        self.request: FoldRequest | None = None
        self.outcome: Outcome = []

    def go_on(self, answer: Prediction | None = None) -> None:
        """Go on with the answer to the last request, or begin, until another one is needed or the target ends."""
        try:
            self.request = next(self._steps) if answer is None else self._steps.send(answer)
        except StopIteration as end:
            self.request, self.outcome = None, end.value
        except Exception as error:  # a mistake of ours in one target must not end a night's batch either
            self.request, self.outcome = None, error

    def fail(self, error: Exception) -> None:
        """End the target, whose last request could not be answered."""
        self._steps.close()
        self.request, self.outcome = None, error


def sizes_of_lots(lengths: Sequence[int | None], settings: RunSettings) -> list[int]:
    """Return how many of the targets with these numbers of residues, in their order, are folded together each time.

    None stands for a target that is folded alone, as complexes are. Models of complexes and groups of ranks that share
    targets fold one at a time, and every process gets some of the targets.
    """
    most = settings.targets_at_once
    if most is None:
        most = AT_ONCE if card_of(settings.device).has_own_memory else 1
    # The place of a template that a target has not is averaged by a model of complexes, and padding would be too.
    has_multimer = any(model.preset.model.method == "multimer" for model in settings.models)
    if settings.workers.group.size > 1 or has_multimer or settings.options.dropout or settings.options.save_passes:
        most = 1
    most = min(most, ceil(len(lengths) / settings.workers.mesh.layout.dp))
    sizes: list[int] = []
    before = 0
    # A target that is to be alone counts as one that is too long to be folded with others.
    for length in (LAUNCH_BOUND_RESIDUES + 1 if length is None else length for length in lengths):
        step = ceil(length / _LENGTH_STEP)
        if sizes and step == before and length <= LAUNCH_BOUND_RESIDUES and sizes[-1] < most:
            sizes[-1] += 1
        else:
            sizes.append(1)
        before = step
    return sizes


def fold_targets(
    targets: Sequence[tuple[Job, Path, Stages]], settings: RunSettings, *, overwrite: bool
) -> list[Outcome]:
    """Make what is missing of each target in its directory, and return how each ended; several share passes.

    All ranks of a group call this. The failure of one target concerns no other.
    """
    begun = [
        TargetUnderWay(target_steps(job, directory, settings, stages, overwrite=overwrite, shows_bar=len(targets) == 1))
        for job, directory, stages in targets
    ]
    for target in begun:
        target.go_on()
    while waiting := [target for target in begun if target.request is not None]:
        alike = _alike(waiting)
        requests = [target.request for target in alike if target.request is not None]
        answers = _fold_together(requests, settings) if len(requests) > 1 else None
        for number, (target, request) in enumerate(zip(alike, requests, strict=True)):
            try:
                answer = fold_request(request, settings) if answers is None else answers[number]
            except Exception as error:
                target.fail(error)
            else:
                target.go_on(answer)
    return [target.outcome for target in begun]


def _alike(waiting: Sequence[TargetUnderWay]) -> list[TargetUnderWay]:
    """Return the first waiting target and those whose request can be answered in the same passes.

    They need the same model and seed and have about as many residues and rows. As many are returned as fit into memory.
    """
    first = waiting[0].request
    assert first is not None
    found, plans = list[TargetUnderWay](), list[Plan]()
    for target in waiting:
        request = target.request
        if request is None or _kind(request) != _kind(first):
            continue
        plans.append(request.plan)
        if found and not fit_together(plans):
            break
        found.append(target)
    return found


def _kind(request: FoldRequest) -> tuple[object, ...]:
    """Return a key that is equal for requests that are answered in the same passes."""
    size, requested = request.plan.size, request.requested
    # Padding takes as much time as what it stands beside: rows are at most doubled.
    rows = size.msa_rows.bit_length(), size.extra_rows.bit_length(), size.templates > 0
    model = requested.model.preset
    return model.name, model.sampling, requested.seed, request.plan.executor, ceil(size.residues / _LENGTH_STEP), rows


def _fold_together(requests: Sequence[FoldRequest], settings: RunSettings) -> list[Prediction] | None:
    """Return the predictions that requests that are alike ask for, made in the same passes; None if that failed."""
    first = requests[0].requested
    return fold_together(
        first.model,
        [request.target for request in requests],
        [request.plan for request in requests],
        replace(settings.options, seed=first.seed),
        stages=[request.stages for request in requests],
        spill=requests[0].spill,
        say=settings.say,
        passes=settings.passes,
        hides_bar=settings.no_bars,
    )
