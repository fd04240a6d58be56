"""What a person sees while a run trains: a bar on a terminal, a line now and then anywhere else."""

import sys
import time
from collections.abc import Mapping

from tqdm import tqdm

from data_pipeline.errors import printable

_SECONDS_BETWEEN_LINES = 30
# Of an evaluation's summary; log.jsonl has all of it.
_SHOWN = {"loss": "loss", "lddt_ca": "CA-lDDT", "tm_score": "TM-score"}


def say(text: str) -> None:
    """One line on stderr, above the bar if there is one."""
    tqdm.write(f"helixfold: {printable(text, 1000)}", file=sys.stderr)


class Progress:
    """Where a run is: steps, the last loss, lDDT at the last evaluation, examples a second; on stderr."""

    def __init__(self, *, first_step: int, last_step: int) -> None:
        self._last_step = last_step
        self._lddt = ""
        self._next_line = 0.0
        # tqdm asks for a terminal itself, but then it would say nothing at all without one.
        self._bar = (
            tqdm(total=last_step, initial=first_step, desc="training", unit="step", file=sys.stderr, dynamic_ncols=True)
            if sys.stderr.isatty()
            else None
        )

    def step(self, step: int, loss: float, examples_per_second: float) -> None:
        text = f"loss {loss:.3f}{self._lddt}, {examples_per_second:.3g} examples/s"
        now = time.monotonic()
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(step + 1 - self._bar.n)
        elif now >= self._next_line or step + 1 == self._last_step:
            self._next_line = now + _SECONDS_BETWEEN_LINES
            say(f"{step + 1} of {self._last_step} steps, {text}")

    def evaluation(self, step: int, summary: Mapping[str, float]) -> None:
        if "lddt_ca" in summary:
            self._lddt = f", lDDT {summary['lddt_ca']:.3f}"
        shown = [f"{name} {summary[key]:.3f}" for key, name in _SHOWN.items() if key in summary]
        say(f"held-out chains after {step + 1} steps: {', '.join(shown)}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
