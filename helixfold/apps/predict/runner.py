"""Fold the remaining targets of a batch, lot by lot, report on each, and pack finished ones; each fails alone."""

import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_pipeline.io.claims import Claims, LostClaimError
from data_pipeline.io.errors import InputError, error_reason, printable
from data_pipeline.io.files import remove_partial_files, require_unmoved
from data_pipeline.io.json_files import read_json
from helixfold.apps.predict.jobs import Job
from helixfold.apps.predict.lot import Outcome, fold_lot
from helixfold.apps.predict.resume import resume_status
from helixfold.apps.predict.settings import RunSettings
from helixfold.apps.search import written_directories
from helixfold.execution.stages import Stage, Stages
from helixfold.folding.prediction import Prediction
from helixfold.parallel.shared_tasks import SharedTasks
from helixfold.parallel.worker_group import OtherRankError
from helixfold.report.files import read_order
from helixfold.report.index import line_entry, write_index
from helixfold.report.page import counted
from helixfold.report.pulldown import pulldown_entry, write_pulldown
from helixfold.results.archive import write_archive
from helixfold.results.driver import print_progress
from helixfold.results.failures import exit_code_for, failure_text, write_failures
from helixfold.results.file_table import FAILURES, INDEX, PULLDOWN, PULLDOWN_PAGE, PULLDOWN_TABLE, SETTINGS
from helixfold.results.json_object import AGAIN
from helixfold.results.packed import TARGETS, PackedResults, pack_targets
from helixfold.results.prediction import read_finished
from helixfold.results.relaxed import read_metrics
from helixfold.runtime.screen import format_duration, remaining_seconds
from helixfold.runtime.standard_streams import print_detail, print_note, print_summary

# The index has a line for every target, so it is not rewritten after each of thousands.
_SECONDS_BETWEEN_INDEXES = 30
# Keys of settings.json that identify results; provenance is read from the file itself.
_SETTINGS_KEYS = ("inputs", "options", "predictions", "clusters")
_BAR_FORMAT = "{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed}{postfix}"


class BatchRunner:
    """Folds the remaining targets of a run; each group of processes takes the next lot when it is free.

    `remaining` has each target with the number of its missing predictions, and `lots` the sizes of the lots of
    consecutive targets that are folded together. With `claims`, each target is claimed first, so that several runs can
    share the batch. With packed output, finished targets are packed, also `unpacked` ones of earlier runs.
    """

    def __init__(
        self,
        remaining: Sequence[tuple[Job, int]],
        lots: Sequence[int],
        settings: RunSettings,
        claims: Claims | None,
        unpacked: Sequence[str],
    ) -> None:
        self._remaining, self._settings, self._workers = remaining, settings, settings.workers
        self._options, self._output = settings.options, settings.options.output
        self._lots = [range(end - size, end) for size, end in zip(lots, accumulate(lots), strict=True)]
        self._packed = PackedResults(self._output)
        self._packs = self._options.output_format == "packed"
        # Finished targets that will be packed. Those that another run still holds are left to it.
        self._to_pack = [
            name for name in unpacked if self._packs and (claims is None or claims.work_on(name) != "held")
        ]
        self._shared_tasks: SharedTasks | None = None
        if claims is not None:
            names = [job.name for job, _ in remaining]
            report = settings.workers.queue.report
            self._shared_tasks = SharedTasks(names, claims, is_needed=self._is_needed, report=report)
        self._next_index_write = 0.0
        self._times_of_finished: list[tuple[int, float]] = []  # residues and seconds per prediction of finished targets

    def run(self, shared_stages: Sequence[Stage]) -> None:
        """Fold targets until none is left, and write failures.json after each failure and the index at intervals.

        `shared_stages` precede all targets, such as loading parameters, and are included in the timings of each. If
        this run is a part of a larger batch, that writes failures.json and the index.
        """
        queue, count = self._workers.queue, len(self._remaining)
        device = self._workers.mesh.device
        own_lots = (self._lots[lot] for lot in self._workers.take_tasks(len(self._lots)))
        # Lots of this run's queue, then targets of other runs that died.
        lots: Iterable[Sequence[int]] = own_lots if self._shared_tasks is None else self._shared_tasks.claimed(own_lots)
        try:
            with tqdm(total=count, desc="targets", bar_format=_BAR_FORMAT, disable=self._settings.no_bars) as bar:
                for indices in lots:
                    bar.set_postfix_str(self._postfix(indices))
                    start = time.perf_counter()
                    lot = [
                        (self._remaining[index][0], Stages(device, shared_stages, partial(self._end_stage, index)))
                        for index in indices
                    ]
                    outcomes = fold_lot(lot, self._settings)
                    seconds = (time.perf_counter() - start) / len(indices)
                    for index, outcome in zip(indices, outcomes, strict=True):
                        failure = self._finish(index, outcome, seconds)
                        bar.update()
                        queue.report(index, failure)
                        require_unmoved(self._output)
                        if self._options.failures_file is None and self._settings.part is None:
                            self._write_pages(failure)
                bar.set_postfix_str("")
            self._pack()
        except KeyboardInterrupt:
            print_note(f"{queue.number_finished()} of {counted(count, 'target')} done")
            raise

    def _is_needed(self, index: int) -> bool:
        """Return whether a claimed target is not finished, and remove partial files of a killed run."""
        job = self._remaining[index][0]
        remove_partial_files(written_directories(self._output, [job.name])[1:])
        self._packed.refresh()
        with self._packed:
            if not resume_status(job, self._output / job.name, self._settings, self._packed).finished:
                return True
        self._pack_later(job.name)
        return False

    def _pack_later(self, name: str) -> None:
        """Pack a finished target, if the output is packed, together with others that fill an archive."""
        if self._packs:
            self._to_pack.append(name)
            if len(self._to_pack) >= TARGETS:
                self._pack()

    def _pack(self) -> None:
        """Pack all waiting targets; a target that cannot be packed stays in its directory, and a warning is printed."""
        waiting, self._to_pack = self._to_pack, []
        if not waiting:
            return
        try:
            problems = pack_targets(self._output, waiting, entry_of)
        except (OSError, ValueError) as error:
            targets = counted(len(waiting), "target")
            line = f"helixfold: {targets} could not be packed, so files stay in directories: {error_reason(error)}"
            tqdm.write(printable(line, 1000), file=sys.stderr)
            return
        for name, problem in problems.items():
            tqdm.write(printable(f"{name}: not packed: {problem}", 1000), file=sys.stderr)

    def _write_pages(self, failure: str | None) -> None:
        """Write failures.json if the last target failed, and the index if it was not written for some time."""
        is_due = time.monotonic() >= self._next_index_write
        if failure is None and not is_due:
            return
        failures = self._workers.queue.failures_so_far()
        if failure is not None:
            # Written after each failure, because the run may be killed before its end.
            with suppress(OSError):  # such as a full disk; `close_batch` tries again and reports it
                write_failures(self._output, failures)
        if is_due:
            write_pages(self._output, failures, [job.name for job, _ in self._remaining])
            self._next_index_write = time.monotonic() + _SECONDS_BETWEEN_INDEXES

    def _finish(self, index: int, outcome: Outcome, seconds: float) -> str | None:
        """Print the outcome of a target, and pack it if the output is packed; return the failure, or None."""
        job, missing = self._remaining[index]
        failure = None
        if isinstance(outcome, LostClaimError):
            self._settings.say(f"{job.name}: {outcome}", file=sys.stderr)
            return None
        if isinstance(outcome, Exception):
            require_unmoved(self._output)  # a moved directory stops the whole run
            failure = str(outcome) if isinstance(outcome, OtherRankError) else failure_text(outcome)
            self._settings.say(f"{job.name}: failed: {failure} [{self._progress(index, seconds)}]", file=sys.stderr)
            print_detail("".join(traceback.format_exception(outcome)).rstrip())
        else:
            if missing:
                self._times_of_finished.append((job.residues, max(seconds, 1e-3) / missing))
            summary = _summary(self._output / job.name, outcome)
            self._settings.say(f"{summary} [{self._progress(index, seconds)}]")
        if self._shared_tasks is not None:
            self._shared_tasks.end(index, failure)
        if failure is None:
            self._pack_later(job.name)
        self._report(index, Stage(name="finished" if failure is None else "failed", seconds=seconds, peak_memory=0))
        return failure

    def _end_stage(self, index: int, stage: Stage) -> None:
        """Report a finished stage of a target; raise `LostClaimError` if another run has claimed the target."""
        if self._shared_tasks is not None:
            self._shared_tasks.require_held(index)
        self._report(index, stage)

    def _postfix(self, indices: Sequence[int]) -> str:
        """Return the text after the bar: the remaining time and the current targets."""
        lengths = [self._remaining[index][0].residues for index in indices]
        name = self._remaining[indices[0]][0].name
        words = [name, f"{lengths[0]} residues"]
        if len(indices) > 1:
            words = [f"{name} and {len(indices) - 1} more", f"{min(lengths)} to {max(lengths)} residues"]
        return ", ".join([*self._time_left(indices[0]), *words])

    def _report(self, index: int, stage: Stage) -> None:
        """Print progress as JSON if the options ask for it; a finished or failed target counts as done."""
        if self._options.progress == "json":
            queue, has_ended = self._workers.queue, stage.name in ("finished", "failed")
            done = queue.number_finished() + len(queue.failures_so_far()) + has_ended
            print_progress(
                self._remaining[index][0].name,
                stage.name,
                done=done,
                total=len(queue),
                seconds=stage.seconds,
                seconds_left=self._seconds_left(index + has_ended),
            )

    def _progress(self, index: int, seconds: float) -> str:
        """Return how many targets are done, the time of the last one, and the remaining time, as text."""
        number = f"{index + 1} of {len(self._remaining)}"
        return ", ".join([number, format_duration(seconds), *self._time_left(index + 1)])

    def _time_left(self, first: int) -> list[str]:
        """Return text with the remaining time, from the target with index `first` on; [] if it is unknown or over."""
        seconds = self._seconds_left(first)
        return [f"about {format_duration(seconds)} left"] if seconds else []

    def _seconds_left(self, first: int) -> float | None:
        """Return the estimated seconds of all targets from an index on; None if unknown."""
        targets = [(job.residues, missing) for job, missing in self._remaining[first:]]
        if not targets:
            return 0.0
        return remaining_seconds(self._times_of_finished, targets, self._workers.mesh.layout.dp)


def entry_of(directory: Path) -> dict[str, Any]:
    """Return the entry of a finished target in the index of packed results, for resuming and for the batch's pages.

    `settings` are the keys of settings.json that identify results, `finished` the mean pLDDT by complete prediction,
    `order` the ranking, `relaxed` the predictions whose relaxation was tried, `line` the line of the batch's page, and
    `pulldown` the scores of the best prediction of a complex. Raise `InputError` for damaged files.
    """
    settings = read_json(SETTINGS.path(directory), AGAIN)
    if not isinstance(settings, dict) or not isinstance(settings.get("predictions"), dict):
        raise InputError.at(SETTINGS.path(directory), f"it has no predictions; {AGAIN}")
    finished = {name: read_finished(directory, name) for name in settings["predictions"]}
    return {
        "settings": {key: settings[key] for key in _SETTINGS_KEYS if key in settings},
        "finished": {name: float(each.plddt.mean()) for name, each in finished.items() if each is not None},
        "order": list(read_order(directory)),
        "relaxed": list(read_metrics(directory)),
        "line": line_entry(directory),
        "pulldown": pulldown_entry(directory),
    }


def archive_finished(directories: Sequence[Path]) -> None:
    """Write a zip archive of each directory of a finished target; print a line for each that fails, and continue."""
    for directory in directories:
        try:
            write_archive(directory)
        except OSError as error:
            tqdm.write(f"{directory.name}: not packed: {error_reason(error)}", file=sys.stderr)


def close_batch(failures: Mapping[str, str], count: int, output: Path) -> int:
    """Write failures.json, the index and the pulldown page of a batch of `count` targets, and return its exit code.

    `failures` are the reasons by target. Print where the pages are, and how many targets failed. Call this in one
    process, after all others have ended.
    """
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
        print(f"helixfold: {counted(len(failures), 'target')} failed, see {FAILURES.path(output)}", file=sys.stderr)
    return exit_code_for(failures)


def write_pages(output: Path, failures: Mapping[str, str], names: Iterable[str] = ()) -> bool:
    """Write the index and the pulldown page of the batch, and return True; if that fails, print why and return False.

    `names` are targets to list although they may have no results yet.
    """
    try:
        write_index(output, names, failures)
        write_pulldown(output, failures)
    except (OSError, InputError) as error:
        tqdm.write(f"helixfold: {INDEX.path(output)}: not written: {error_reason(error)}", file=sys.stderr)
        return False
    return True


def _summary(directory: Path, order: Sequence[Prediction]) -> str:
    """Return the line about a finished target with the scores of its best prediction."""
    best = order[0]
    ptm = "" if best.ptm is None else f", pTM {best.ptm:.2f}"
    ptm += "" if best.iptm is None else f", ipTM {best.iptm:.2f}"
    recycles = f"{counted(best.num_recycles, 'recycle')}{' (settled)' if best.converged else ''}"
    return f"{directory.name}: mean pLDDT {best.plddt.mean():.1f}{ptm}, {best.name}, {recycles} -> {directory}"
