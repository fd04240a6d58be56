"""Progress of a training run, as recorded in its checkpoints and displayed on stderr.

A terminal shows a bar; otherwise a line is printed every half minute.
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tqdm import tqdm

from data_pipeline.io.errors import printable
from helixfold.report.page import counted
from helixfold.runtime.standard_streams import print_note
from helixfold.training.config import EvaluationConfig

_SECONDS_BETWEEN_LINES = 30
# For steps and evaluations, this is the weighted sum of all terms without the factor for the number of residues.
_LOSS_NAME = "weighted loss"
# These scores of an evaluation are printed; log.jsonl has all of them.
_PRINTED_SCORES = {
    "loss": _LOSS_NAME,
    "lddt_ca": "CA-lDDT",
    "tm_score": "TM-score",
    "chain_lddt_ca": "CA-lDDT within chains",
    "interface_lddt": "interface lDDT",
    "dockq": "DockQ",
}


def print_message(text: str) -> None:
    """Print one line on stderr, after "helixfold: ", above the progress bar if there is one."""
    tqdm.write(f"helixfold: {printable(text, 1000)}", file=sys.stderr)


class Progress:
    """Display of steps, the last weighted loss, lDDT at the last evaluation, and examples per second.

    `first_step` is the next step of the run, which ends before `last_step`.
    """

    def __init__(self, *, first_step: int, last_step: int) -> None:
        self._last_step = last_step
        self._lddt = ""
        self._next_line = 0.0
        # tqdm can check for a terminal itself, but prints nothing if there is none.
        self._bar = (
            tqdm(total=last_step, initial=first_step, desc="training", unit="step", file=sys.stderr, dynamic_ncols=True)
            if sys.stderr.isatty()
            else None
        )

    def step(self, step: int, weighted_loss: float, examples_per_second: float) -> None:
        """Show a completed step, whose index counts from 0, in the bar.

        Without a terminal, print a line instead if the last one is half a minute old or the run ends.
        """
        text = f"{_LOSS_NAME} {weighted_loss:.3f}{self._lddt}, {examples_per_second:.3g} examples/s"
        now = time.monotonic()
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(step + 1 - self._bar.n)
        elif now >= self._next_line or step + 1 == self._last_step:
            self._next_line = now + _SECONDS_BETWEEN_LINES
            print_note(f"{step + 1} of {counted(self._last_step, 'step')}, {text}")

    def evaluation(self, step: int, summary: Mapping[str, float]) -> None:
        """Print the main mean scores of the held-out chains or complexes after a step, whose index counts from 0."""
        if "lddt_ca" in summary:
            self._lddt = f", lDDT {summary['lddt_ca']:.3f}"
        scores = [f"{name} {summary[key]:.3f}" for key, name in _PRINTED_SCORES.items() if key in summary]
        kind = "complexes" if "chain_lddt_ca" in summary else "chains"
        print_note(f"held-out {kind} after {counted(step + 1, 'step')}: {', '.join(scores)}")

    def close(self) -> None:
        """End the bar, if there is one."""
        if self._bar is not None:
            self._bar.close()


@dataclass(kw_only=True)
class RunProgress:
    """Progress of a run, which its checkpoints record in addition to tensors.

    `step` is the index of the next step, the number of completed steps. `skipped` counts steps whose loss or gradient
    was not finite, and `skipped_in_a_row` those since the last other step. `best_score` is the highest `deciding_score`
    of the held-out chains or complexes, and `best_step` the number of completed steps at that evaluation.
    `descends_from` is the packaged model from which the initial parameters descend. `began_with` describes the initial
    parameters; None if all were random.
    """

    step: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    best_score: float | None = None
    best_step: int | None = None
    descends_from: str | None = None
    began_with: str | None = None

    def is_settled(self, evaluation: EvaluationConfig) -> bool:
        """Return whether the run ends early, after `patience` evaluations without a new best score.

        It does not without a best score or if `patience` is None.
        """
        if evaluation.patience is None or self.best_step is None:
            return False
        return self.step - self.best_step >= evaluation.patience * evaluation.every
