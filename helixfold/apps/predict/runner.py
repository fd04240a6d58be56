"""Fold the remaining targets of a batch, lot by lot, and report on each; one that fails stops no other."""

import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path

from tqdm import tqdm

from data_pipeline.io.claims import Claims, LostClaimError
from data_pipeline.io.errors import InputError
from data_pipeline.io.files import remove_partial_files, require_unmoved
from helixfold.apps.predict.jobs import Job
from helixfold.apps.predict.lot import Outcome, fold_lot
from helixfold.apps.predict.packing import Packer
from helixfold.apps.predict.resume import resume_status
from helixfold.apps.predict.settings import RunSettings
from helixfold.apps.search import written_directories
from helixfold.execution.stages import Stage, Stages
from helixfold.folding.prediction import Prediction
from helixfold.parallel.shared_tasks import SharedTasks
from helixfold.parallel.task_queue import TaskQueue
from helixfold.parallel.worker_group import OtherRankError
from helixfold.report.index import write_index
from helixfold.report.page import counted
from helixfold.report.pulldown import write_pulldown
from helixfold.results.archive import write_archive
from helixfold.results.driver import print_progress
from helixfold.results.failures import exit_code_for, failure_text, write_failures
from helixfold.results.file_table import FAILURES, INDEX, PULLDOWN, PULLDOWN_PAGE, PULLDOWN_TABLE
from helixfold.results.packed import PackedResults
from helixfold.runtime.screen import format_duration, remaining_seconds
from helixfold.runtime.standard_streams import print_detail, print_note, print_summary

# The index has a line for every target: it is not written again for each of thousands.
_SECONDS_BETWEEN_INDEXES = 30
_BAR = "{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed}{postfix}"


class BatchRunner:
    """Fold the remaining targets of a run; each group of processes takes the next lot of them when it is free.

    `remaining` are targets with the numbers of their missing predictions, and `lots` the numbers of targets that follow
    each other and are folded together. Targets are claimed one by one if the run has `claims`. A `packer` packs what is
    finished.
    """

    def __init__(
        self,
        remaining: Sequence[tuple[Job, int]],
        lots: Sequence[int],
        settings: RunSettings,
        claims: Claims | None,
        packer: Packer | None = None,
    ) -> None:
        self._remaining, self._settings, self._workers = remaining, settings, settings.workers
        self._options, self._output = settings.options, settings.options.output
        self._lots = [range(end - size, end) for size, end in zip(lots, accumulate(lots), strict=True)]
        self._packer, self._packed = packer, PackedResults(self._output)
        self._shared: SharedTasks | None = None
        if claims is not None:
            names = [job.name for job, _ in remaining]
            report = settings.workers.queue.report
            self._shared = SharedTasks(names, claims, is_needed=self._is_needed, report=report)
        self._next_index = 0.0
        self._finished: list[tuple[int, float]] = []  # residues and seconds of a prediction of each target

    def run(self, shared_stages: Sequence[Stage]) -> None:
        """Fold the targets that this group of processes takes; write failures.json at once, the index now and then.

        `shared_stages` precede all targets, such as loading parameters, and are part of the timings of each. A run that
        is a part of a larger batch leaves failures.json and the index to that.
        """
        queue, count = self._workers.queue, len(self._remaining)
        try:
            with tqdm(total=count, desc="targets", bar_format=_BAR, disable=self._settings.no_bars) as bar:
                for numbers in self._taken():
                    bar.set_postfix_str(self._postfix(numbers))
                    start = time.perf_counter()
                    outcomes = fold_lot([self._target(number, shared_stages) for number in numbers], self._settings)
                    seconds = (time.perf_counter() - start) / len(numbers)
                    for number, outcome in zip(numbers, outcomes, strict=True):
                        failure = self._finish(number, outcome, seconds)
                        bar.update()
                        queue.report(number, failure)
                        require_unmoved(self._output)
                        if self._options.failures_file is None and self._settings.part is None:
                            self._write_pages(failure)
                bar.set_postfix_str("")
            if self._packer is not None:
                self._packer.pack()
        except KeyboardInterrupt:
            print_note(f"{queue.number_finished()} of {counted(count, 'target')} done")
            raise

    def _taken(self) -> Iterator[Sequence[int]]:
        """Yield the numbers of the targets to fold next: of those in this run's queue, then of other runs that died.

        Targets of other runs count as done here; those that failed there, as failed.
        """
        lots = (self._lots[lot] for lot in self._workers.take_tasks(len(self._lots)))
        yield from lots if self._shared is None else self._shared.claimed(lots)

    def _is_needed(self, number: int) -> bool:
        """Return whether a claimed target is not finished, and remove what a killed run had not finished writing."""
        job = self._remaining[number][0]
        remove_partial_files(written_directories(self._output, [job.name])[1:])
        self._packed.refresh()
        with self._packed:
            if not resume_status(job, self._output / job.name, self._settings, self._packed).finished:
                return True
        if self._packer is not None:
            self._packer.add(job.name)
        return False

    def _target(self, number: int, shared_stages: Sequence[Stage]) -> tuple[Job, Stages]:
        ended = partial(self._ended_stage, number)
        return self._remaining[number][0], Stages(self._workers.mesh.device, shared_stages, ended)

    def _write_pages(self, failure: str | None) -> None:
        """Write failures.json if the last target failed, and now and then the index."""
        is_due = time.monotonic() >= self._next_index
        if failure is None and not is_due:
            return
        failures = self._workers.queue.failures_so_far()
        if failure is not None:
            # At once, for a run that is ended has no other chance to say so.
            with suppress(OSError):  # such as a full disk; `close` tries again, and tells
                write_failures(self._output, failures)
        if is_due:
            write_pages(self._output, failures, [job.name for job, _ in self._remaining])
            self._next_index = time.monotonic() + _SECONDS_BETWEEN_INDEXES

    def _finish(self, number: int, outcome: Outcome, seconds: float) -> str | None:
        """Print how a target ended and pack its results if they are wanted; return why it failed, if it did."""
        job, missing = self._remaining[number]
        directory = self._output / job.name
        failure = None
        if isinstance(outcome, LostClaimError):
            self._settings.say(f"{job.name}: {outcome}", file=sys.stderr)
            return None
        try:
            if isinstance(outcome, Exception):
                raise outcome
            if outcome and self._options.zip:
                write_archive(directory)
        except Exception as error:
            require_unmoved(self._output)  # which concerns all targets
            failure = str(error) if isinstance(error, OtherRankError) else failure_text(error)
            self._settings.say(f"{job.name}: failed: {failure} [{self._progress(number, seconds)}]", file=sys.stderr)
            print_detail("".join(traceback.format_exception(error)).rstrip())
        else:
            if missing:
                self._finished.append((job.residues, max(seconds, 1e-3) / missing))
            if outcome:
                self._settings.say(f"{_summary(directory, outcome)} [{self._progress(number, seconds)}]")
        ended = "finished" if failure is None else "failed"
        if self._shared is not None:
            self._shared.end(number, failure)
        if failure is None and outcome and self._packer is not None:
            self._packer.add(job.name)
        self._report(number, Stage(name=ended, seconds=seconds, peak_memory=0))
        return failure

    def _ended_stage(self, number: int, stage: Stage) -> None:
        """Report a stage of a target; raise `LostClaimError` if another run has claimed the target."""
        if self._shared is not None:
            self._shared.require_held(number)
        self._report(number, stage)

    def _postfix(self, numbers: Sequence[int]) -> str:
        """Return what the bar says beside its numbers: the time that is left, and the targets under way."""
        lengths = [self._remaining[number][0].residues for number in numbers]
        name = self._remaining[numbers[0]][0].name
        words = [name, f"{lengths[0]} residues"]
        if len(numbers) > 1:
            words = [f"{name} and {len(numbers) - 1} more", f"{min(lengths)} to {max(lengths)} residues"]
        time_left = self._time_left(numbers[0])
        return ", ".join([time_left, *words] if time_left else words)

    def _report(self, number: int, stage: Stage) -> None:
        """Print progress as JSON, if this run does so; a target that has ended counts as done."""
        if self._settings.prints_json:
            queue, has_ended = self._workers.queue, stage.name in ("finished", "failed")
            done = queue.number_finished() + len(queue.failures_so_far()) + has_ended
            print_progress(
                self._remaining[number][0].name,
                stage.name,
                done=done,
                total=len(queue),
                seconds=stage.seconds,
                seconds_left=self._seconds_left(number + has_ended),
            )

    def _progress(self, number: int, seconds: float) -> str:
        time_left = self._time_left(number + 1)
        words = [f"{number + 1} of {len(self._remaining)}", format_duration(seconds)]
        return ", ".join([*words, time_left] if time_left else words)

    def _time_left(self, first: int) -> str | None:
        """Say how long the targets from that one on will take; None if nothing is known yet, or nothing is left."""
        seconds = self._seconds_left(first)
        return f"about {format_duration(seconds)} left" if seconds else None

    def _seconds_left(self, first: int) -> float | None:
        targets = [(job.residues, missing) for job, missing in self._remaining[first:]]
        if not targets:
            return 0.0
        return remaining_seconds(self._finished, targets, self._workers.mesh.layout.dp)


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
    return close_batch(queue.failures(), len(queue), output)


def close_part(queue: TaskQueue, failures_file: Path) -> int:
    """Write why targets of a part of a batch failed, and return the exit code of the part."""
    failures = queue.failures()
    write_failures(failures_file.parent, failures, failures_file.name)
    return exit_code_for(failures)


def close_batch(failures: Mapping[str, str], count: int, output: Path) -> int:
    """Write failures.json and the index page of a batch of so many targets, and return its exit code."""
    require_unmoved(output)
    try:
        write_failures(output, failures)
    except OSError as error:
        tqdm.write(f"helixfold: {FAILURES.path(output)}: not written: {error.strerror}", file=sys.stderr)
    if write_pages(output, failures) and count:
        print_summary(f"all targets on one page: {INDEX.path(output)}")
        if PULLDOWN.path(output).is_file():
            print_summary(f"baits and preys, ranked: {PULLDOWN_PAGE.path(output)}, {PULLDOWN_TABLE.path(output)}")
    if failures:
        print(f"helixfold: {len(failures)} of {counted(count, 'target')} failed, see {output}", file=sys.stderr)
    return exit_code_for(failures)


def write_pages(output: Path, failures: Mapping[str, str], names: Iterable[str] = ()) -> bool:
    """Write the pages of the batch, and return whether they could be written, without which a batch goes on."""
    try:
        write_index(output, names, failures)
        write_pulldown(output, failures)
    except (OSError, InputError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        tqdm.write(f"helixfold: {INDEX.path(output)}: not written: {problem}", file=sys.stderr)
        return False
    return True


def _summary(directory: Path, order: Sequence[Prediction]) -> str:
    best = order[0]
    ptm = "" if best.ptm is None else f", pTM {best.ptm:.2f}"
    ptm += "" if best.iptm is None else f", ipTM {best.iptm:.2f}"
    recycles = f"{counted(best.num_recycles, 'recycle')}{' (settled)' if best.converged else ''}"
    return f"{directory.name}: mean pLDDT {best.plddt.mean():.1f}{ptm}, {best.name}, {recycles} -> {directory}"
