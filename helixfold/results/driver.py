"""Run a command over items, such as structures or designs: failures are recorded, and the other items continue."""

import json
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from tqdm import tqdm

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import require_unmoved
from helixfold.results.failures import exit_code_for, failure_text, write_failures
from helixfold.results.file_table import FAILURES
from helixfold.results.lock import locked_directory
from helixfold.runtime.options import Progress
from helixfold.runtime.standard_streams import print_detail, print_note


class Run:
    """Progress and failures of a run over items, which have `total` steps together; `unit` names a step.

    `done` counts completed steps, including `skipped` steps of an earlier run and steps of failed items. `failures` has
    the reasons by item. A terminal shows a bar. With `progress` "json", stderr gets a JSON object after each step, item
    and failure.
    """

    def __init__(self, output: Path, unit: str, total: int, progress: Progress = "bars") -> None:
        self.output, self.failures = output, dict[str, str]()
        self._is_json, self._began, self._last = progress == "json", 0.0, 0.0
        self.bar = tqdm(total=total, desc=f"{unit}s", unit=unit, disable=self._is_json or None)
        self.total, self.done, self.skipped = total, 0, 0

    @contextmanager
    def item(self, name: str, steps: int = 1, *, continues: bool = False) -> Iterator[None]:
        """Process an item with this number of steps in the context; an exception is recorded as the item's failure.

        Steps that were not reported in the context count as done at its end, also after a failure. With `continues`,
        the item is finished in a later context, so its end is neither reported nor counted.
        """
        self._began = self._began or time.monotonic()
        self._last = self._last or self._began
        end = self.done + steps
        try:
            yield
        except Exception as error:
            reason = str(error) if isinstance(error, InputError) else failure_text(error)
            self.fail(name, reason, end - self.done)
            print_detail("".join(traceback.format_exception(error)).rstrip())
            traceback.clear_frames(error.__traceback__)  # Its frames may hold tensors; the next item needs the memory.
        else:
            if not continues:
                self.report(name, "finished", end - self.done)

    def fail(self, name: str, reason: str, steps: int = 1) -> None:
        """Record and print why an item failed, and count its steps.

        failures.json is written now, because the run may be killed later. An error while writing it is ignored.
        """
        require_unmoved(self.output)  # If the directory was moved, the run ends, because this affects all items.
        self.failures[name] = reason
        tqdm.write(f"{printable(name)}: failed: {printable(reason, 1000)}", file=sys.stderr)
        with suppress(OSError):  # For example, the disk is full; writing is tried again at the end of the run.
            write_failures(self.output, self.failures)
        self.report(name, "failed", steps)

    def skip(self, steps: int = 1) -> None:
        """Count steps that an earlier run completed as done; they are left out of the estimate of the time left."""
        self.skipped += steps
        self.done += steps
        self.bar.update(steps)

    def report(self, name: str, stage: str, steps: int = 1) -> None:
        """Advance the bar by the steps of a stage of an item that has ended; as JSON, print the stage's progress."""
        self.done += steps
        now = time.monotonic()
        self.bar.update(steps)
        if self._is_json:
            done = self.done - self.skipped
            left = (self.total - self.done) * (now - self._began) / done if done else None
            print_progress(name, stage, done=self.done, total=self.total, seconds=now - self._last, seconds_left=left)
        self._last = now

    @property
    def exit_code(self) -> int:
        """The exit code of the command, from its failures (`exit_code_for`)."""
        return exit_code_for(self.failures)


@contextmanager
def driven(
    output: Path, unit: str, total: int, progress: Progress = "bars", *, is_shared: bool = False
) -> Iterator[Run]:
    """Lock the output directory for a run over `total` steps, and write failures.json at its end.

    The number of failures is printed. After an interruption, only the number of completed steps is printed. With
    `is_shared`, several runs that claim items may use the directory. Raise `InputError` if another run holds the lock.
    """
    with locked_directory(output, is_shared=is_shared):
        run = Run(output, unit, total, progress)
        try:
            yield run
        except KeyboardInterrupt:
            print_note(f"{run.done} of {total} {unit}s done")
            raise
        finally:
            run.bar.close()
        write_failures(output, run.failures)
    if run.failures:
        print(f"helixfold: {len(run.failures)} failed, see {FAILURES.path(output)}", file=sys.stderr)


def print_progress(
    target: str, stage: str, *, done: int, total: int, seconds: float, seconds_left: float | None = None
) -> None:
    """Print a JSON object on stderr: a target's stage that has just ended, its time, and the progress of the run.

    `seconds_left` is the estimated time of the remaining steps, or None if it is not known yet.
    """
    remaining = None if seconds_left is None else round(seconds_left, 1)
    now = datetime.now().astimezone().isoformat(timespec="milliseconds")
    progress = {"target": target, "stage": stage, "done": done, "total": total, "seconds": round(seconds, 3)}
    print(json.dumps({**progress, "seconds_left": remaining, "time": now}), file=sys.stderr, flush=True)
