"""Targets under way: what each needs next, and how it ended."""

from pathlib import Path

from helixfold.execution.stages import Stages
from helixfold.predict.jobs import Job, RunSettings
from helixfold.predict.target import Answer, FoldRequest, TargetSteps, fold_request, target_steps
from helixfold.write.ranking import FinishedPrediction

# The predictions of a target, best first, or the error by which it failed.
Outcome = list[FinishedPrediction] | Exception


class TargetUnderWay:
    """A target under way: the prediction that it needs next, or once it has ended its outcome."""

    def __init__(self, steps: TargetSteps) -> None:
        self._steps = steps
        self.request: FoldRequest | None = None
        self.outcome: Outcome | None = None

    def go_on(self, answer: Answer | None = None) -> None:
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

    def ended(self) -> Outcome:
        """Return the outcome of a target that has ended."""
        assert self.outcome is not None, "a target without a request has ended"
        return self.outcome


def fold_target(
    job: Job, directory: Path, settings: RunSettings, stages: Stages, *, overwrite: bool = False
) -> Outcome:
    """Make what is missing of one target in its directory, and return how it ended; all ranks of a group call this."""
    target = TargetUnderWay(target_steps(job, directory, settings, stages, overwrite=overwrite))
    target.go_on()
    while target.request is not None:
        try:
            answer = fold_request(target.request, settings)
        except Exception as error:
            target.fail(error)
        else:
            target.go_on(answer)
    return target.ended()
