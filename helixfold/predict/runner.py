"""Fold the remaining targets of a batch one after the other, and report on each; one that fails stops no other."""

import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tqdm import tqdm

from data_pipeline.files import require_unmoved
from helixfold.execution.stages import Stage, Stages
from helixfold.parallel.task_queue import TaskQueue
from helixfold.parallel.worker_group import OtherRankError
from helixfold.predict.eta import format_duration, remaining_seconds
from helixfold.predict.jobs import Job, RunSettings
from helixfold.predict.resume import ResumeStatus
from helixfold.predict.screen import print_progress
from helixfold.predict.search import exit_code_for
from helixfold.predict.target import fold_target
from helixfold.report.index import INDEX_FILE, write_index
from helixfold.report.page import counted
from helixfold.write.archive import write_archive
from helixfold.write.ranking import FinishedPrediction
from helixfold.write.results import FAILURES_FILE, write_failures

# The index has a line for every target: it is not written again for each of thousands.
_SECONDS_BETWEEN_INDEXES = 30
# Errors that a target is known to end with; any other is a mistake in the program.
EXPECTED_ERRORS = (RuntimeError, MemoryError, OSError, ValueError)
_BAR = "{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed}{postfix}"


class BatchRunner:
    """Fold the remaining targets of a run; each group of processes takes the next target when it is free."""

    def __init__(
        self,
        remaining: Sequence[tuple[Job, ResumeStatus]],
        output: Path,
        settings: RunSettings,
        *,
        overwrite: bool,
        archive: bool,
    ) -> None:
        self._remaining, self._output, self._settings = remaining, output, settings
        self._overwrite, self._archive = overwrite, archive
        self._workers = settings.workers
        self._next_index = 0.0
        self._finished: list[tuple[int, float]] = []  # residues and seconds of a prediction of each target

    def run(self, shared_stages: Sequence[Stage]) -> None:
        """Fold the targets that this group of processes takes; write failures.json at once, the index now and then.

        `shared_stages` precede all targets, such as loading parameters, and are part of the timings of each.
        """
        workers, count, failures = self._workers, len(self._remaining), dict[str, str]()
        try:
            with tqdm(total=count, desc="targets", bar_format=_BAR, disable=self._settings.no_bars) as bar:
                for number in workers.take_tasks(count):
                    job = self._remaining[number][0]
                    time_left = self._time_left(number)
                    words = [time_left] if time_left else []
                    bar.set_postfix_str(", ".join([*words, job.name, f"{len(job.sequence)} residues"]))
                    report = partial(self._report, job.name)
                    stages = Stages(workers.mesh.device, shared_stages, report)
                    start = time.perf_counter()
                    failure = self._fold(number, stages)
                    ended = "finished" if failure is None else "failed"
                    report(Stage(name=ended, seconds=time.perf_counter() - start, peak_memory=0))
                    bar.update()
                    if not workers.is_leader:
                        continue
                    workers.queue.report(number, failure)
                    require_unmoved(self._output)
                    if failure is not None:
                        # At once, for a run that is ended has no other chance to say so.
                        failures = workers.queue.failures_so_far()
                        with suppress(OSError):  # such as a full disk; `close` tries again, and tells
                            write_failures(self._output, failures)
                    if time.monotonic() >= self._next_index:
                        _write_index(self._output, failures, [job.name for job, _ in self._remaining])
                        self._next_index = time.monotonic() + _SECONDS_BETWEEN_INDEXES
                bar.set_postfix_str("")
        except KeyboardInterrupt:
            tqdm.write(
                f"helixfold: {workers.queue.number_finished()} of {counted(count, 'target')} done", file=sys.stderr
            )
            raise

    def _fold(self, number: int, stages: Stages) -> str | None:
        """Fold a target and print how it ended; return why it failed, if it did."""
        job, status = self._remaining[number]
        directory, start = self._output / job.name, time.perf_counter()
        try:
            order = fold_target(job, directory, self._settings, stages, overwrite=self._overwrite)
            if order and self._archive:
                write_archive(directory)
        except Exception as error:  # a mistake of ours in one target must not end a night's batch either
            require_unmoved(self._output)  # which concerns all targets
            failure = _failure_text(error)
            progress = self._progress(number, time.perf_counter() - start)
            self._settings.say(f"{job.name}: failed: {failure} [{progress}]", file=sys.stderr)
            return failure
        seconds = time.perf_counter() - start
        if status.missing:
            self._finished.append((len(job.sequence), max(seconds, 1e-3) / status.missing))
        if order:
            self._settings.say(f"{_summary(directory, order)} [{self._progress(number, seconds)}]")
        return None

    def _report(self, target: str, stage: Stage) -> None:
        """Print progress as JSON, if this run does so; a target that has ended counts as done."""
        if self._settings.prints_json and self._workers.is_leader:
            queue = self._workers.queue
            done = queue.number_finished() + len(queue.failures_so_far()) + (stage.name in ("finished", "failed"))
            print_progress(target, stage.name, done=done, total=len(self._remaining), seconds=stage.seconds)

    def _progress(self, number: int, seconds: float) -> str:
        time_left = self._time_left(number + 1)
        words = [f"{number + 1} of {len(self._remaining)}", format_duration(seconds)]
        return ", ".join([*words, time_left] if time_left else words)

    def _time_left(self, first: int) -> str | None:
        """Say how long the targets from that one on will take; None if nothing is known yet, or nothing is left."""
        targets = [(len(job.sequence), status.missing) for job, status in self._remaining[first:]]
        seconds = remaining_seconds(self._finished, targets, self._workers.mesh.layout.dp)
        return f"about {format_duration(seconds)} left" if seconds else None


def _failure_text(error: Exception) -> str:
    """Say why a target failed, with the place in the program if the error is unexpected."""
    if isinstance(error, OtherRankError):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, EXPECTED_ERRORS):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} (in {Path(last.filename).name}, line {last.lineno}: a mistake in the program, please report it)"


def archive_finished(directories: Sequence[Path]) -> None:
    """Pack targets that were finished before; print which cannot be packed, and go on."""
    for directory in directories:
        try:
            write_archive(directory)
        except OSError as error:
            tqdm.write(f"{directory.name}: not packed: {error.strerror or error}", file=sys.stderr)


def close(queue: TaskQueue, output: Path) -> int:
    """Write failures.json and the index page of a batch that has ended, and return its exit code.

    One process does this for all, when no other is at work any more.
    """
    failures = queue.failures()
    require_unmoved(output)
    try:
        write_failures(output, failures)
    except OSError as error:
        tqdm.write(f"helixfold: {output / FAILURES_FILE}: not written: {error.strerror}", file=sys.stderr)
    if _write_index(output, failures) and len(queue):
        print(f"all targets on one page: {output / INDEX_FILE}")
    if failures:
        print(f"helixfold: {len(failures)} of {counted(len(queue), 'target')} failed, see {output}", file=sys.stderr)
    return exit_code_for(failures)


def _write_index(output: Path, failures: Mapping[str, str], names: Iterable[str] = ()) -> bool:
    """Write the page of the batch, and return whether it could be written, without which a batch goes on."""
    try:
        write_index(output, names, failures)
    except OSError as error:
        tqdm.write(f"helixfold: {output / INDEX_FILE}: not written: {error.strerror}", file=sys.stderr)
        return False
    return True


def _summary(directory: Path, order: Sequence[FinishedPrediction]) -> str:
    best = order[0]
    ptm = "" if best.ptm is None else f", pTM {best.ptm:.2f}"
    recycles = f"{counted(best.num_recycles, 'recycle')}{' (settled)' if best.converged else ''}"
    return f"{directory.name}: mean pLDDT {best.ranking_confidence:.1f}{ptm}, {best.name}, {recycles} -> {directory}"
