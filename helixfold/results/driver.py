"""The loop of a command over items, such as structures or designs: what fails is recorded, and the others go on."""

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
    """Progress and failures of a run over `total` steps, of which an item has one or more.

    A terminal shows a bar; with `progress` "json", stderr has a JSON object after each step, item and failure.
    """

    def __init__(self, output: Path, unit: str, total: int, progress: Progress = "bars") -> None:
        self.output, self.failures = output, dict[str, str]()
        self._is_json, self._began, self._last = progress == "json", 0.0, 0.0
        self.bar = tqdm(total=total, desc=f"{unit}s", unit=unit, disable=self._is_json or None)
        self.total, self.done, self.skipped = total, 0, 0

    @contextmanager
    def item(self, name: str, steps: int = 1, *, continues: bool = False) -> Iterator[None]:
        """Do an item inside, which has so many steps; any error is its failure, and goes no further.

        An item that `continues` is finished in another block.
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
            traceback.clear_frames(error.__traceback__)  # which may hold tensors, for whose memory the next item waits
        else:
            if not continues:
                self.report(name, "finished", end - self.done)

    def fail(self, name: str, reason: str, steps: int = 1) -> None:
        """Record why an item failed, at once, because a run that is killed has no other chance to do so."""
        require_unmoved(self.output)  # which concerns all items
        self.failures[name] = reason
        tqdm.write(f"{printable(name)}: failed: {printable(reason, 1000)}", file=sys.stderr)
        with suppress(OSError):  # such as a full disk; the end of the run tries again
            write_failures(self.output, self.failures)
        self.report(name, "failed", steps)

    def skip(self, steps: int = 1) -> None:
        """Count steps of an earlier run, which took no time of this one."""
        self.skipped += steps
        self.done += steps
        self.bar.update(steps)

    def report(self, name: str, stage: str, steps: int = 1) -> None:
        """Show that a stage of an item has ended, which is so many steps."""
        self.done += steps
        now = time.monotonic()
        self.bar.update(steps)
        if self._is_json:
            left = None
            if self.done > self.skipped:
                left = (self.total - self.done) * (now - self._began) / (self.done - self.skipped)
            print_progress(name, stage, done=self.done, total=self.total, seconds=now - self._last, seconds_left=left)
        self._last = now

    @property
    def exit_code(self) -> int:
        """Return the exit code of a command that ends after this run."""
        return exit_code_for(self.failures)


@contextmanager
def driven(
    output: Path, unit: str, total: int, progress: Progress = "bars", *, is_shared: bool = False
) -> Iterator[Run]:
    """Lock the output directory for a run over `total` steps, and write failures.json at its end.

    Runs that claim items share the directory. Raise `InputError` if another run holds the lock.
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
    """Print one JSON object on stderr: a stage of a target that ended now, after `seconds`, and what is done of a run.

    `seconds_left` are those that the rest will take, None if nothing is known yet.
    """
    left = None if seconds_left is None else round(seconds_left, 1)
    now = datetime.now().astimezone().isoformat(timespec="milliseconds")
    progress = {"target": target, "stage": stage, "done": done, "total": total, "seconds": round(seconds, 3)}
    print(json.dumps({**progress, "seconds_left": left, "time": now}), file=sys.stderr, flush=True)
