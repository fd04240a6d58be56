"""The targets that are left of a batch, one after the other; one that fails stops no other, and all of it is said."""

import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from helixfold.execution.stages import Stage, Stages
from helixfold.parallel.crew import ElsewhereError
from helixfold.parallel.queue import Queue
from helixfold.predict.eta import Pace, in_words
from helixfold.predict.jobs import Job, Method
from helixfold.predict.resume import Outlook
from helixfold.predict.target import fold_target
from helixfold.report.index import INDEX_FILE, Index
from helixfold.write.archive import write_archive
from helixfold.write.ranking import Finished
from helixfold.write.results import write_failures

SOME_FAILED = 1
# What is known to go wrong with one target.
FAILURES = (RuntimeError, MemoryError, OSError, ValueError)
_BAR = "{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed}{postfix}"


class Turns:
    """The list of a run's targets, which its groups of processes take from, each the next one when it is free."""

    def __init__(
        self, left: Sequence[tuple[Job, Outlook]], output: Path, method: Method, *, overwrite: bool, archive: bool
    ) -> None:
        self._left, self._output, self._method = left, output, method
        self._overwrite, self._archive = overwrite, archive
        self._crew, self._pace = method.crew, Pace()

    def take(self, index: Index, earlier: Sequence[Stage]) -> None:
        """Fold what this group of processes gets; `earlier` are the stages that all targets share."""
        crew, count, failed = self._crew, len(self._left), dict[str, str]()
        with (
            tqdm(total=count, desc="targets", bar_format=_BAR, disable=self._method.no_bars) as bar,
            _how_far(crew.queue, count),
        ):
            for number in crew.taken(count):
                job = self._left[number][0]
                words = [f"about {rest} left"] if (rest := self._time_left(number)) else []
                bar.set_postfix_str(", ".join([*words, job.name, f"{len(job.sequence)} residues"]))
                failure = self._fold(number, Stages(crew.mesh.device, earlier))
                bar.update()
                if not crew.leads:
                    continue
                crew.queue.finished(number, failure)
                if failure is not None:
                    # At once, for a run that is ended has no other chance to say so.
                    failed = crew.queue.failures_so_far()
                    write_failures(self._output, failed)
                _write_index(index, failed)
            bar.set_postfix_str("")

    def _fold(self, number: int, stages: Stages) -> str | None:
        """Fold a target and say what became of it; why it failed, if it did."""
        job, outlook = self._left[number]
        directory, begun = self._output / job.name, time.perf_counter()
        try:
            order = fold_target(job, directory, self._method, stages, overwrite=self._overwrite)
            if order and self._archive:
                write_archive(directory)
        except Exception as error:  # a mistake of ours in one target must not end a night's batch either
            failure = _reason(error)
            place = self._place(number, time.perf_counter() - begun)
            self._method.say(f"{job.name}: failed: {failure} [{place}]", file=sys.stderr)
            return failure
        seconds = time.perf_counter() - begun
        self._pace.took(len(job.sequence), seconds, outlook.missing)
        if order:
            self._method.say(f"{_summary(directory, order)} [{self._place(number, seconds)}]")
        return None

    def _place(self, number: int, seconds: float) -> str:
        words = [f"{number + 1} of {len(self._left)}", in_words(seconds)]
        rest = self._time_left(number + 1)
        return ", ".join([*words, f"about {rest} left"] if rest else words)

    def _time_left(self, first: int) -> str | None:
        """For the targets from that one on, as far as anything can be said."""
        left = [(len(job.sequence), outlook.missing) for job, outlook in self._left[first:]]
        seconds = self._pace.left(left, self._crew.mesh.layout.dp)
        return in_words(seconds) if seconds else None


@contextmanager
def _how_far(queue: Queue, count: int) -> Iterator[None]:
    """Say how far a batch has come when the keyboard ends it; what was being written is gone by then."""
    try:
        yield
    except KeyboardInterrupt:
        tqdm.write(f"helixfold: {queue.number_finished()} of {count} targets are done", file=sys.stderr)
        raise


def _reason(error: Exception) -> str:
    """Why a target failed, and where, if that is nothing that is known to go wrong."""
    if isinstance(error, ElsewhereError):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, FAILURES):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} (in {Path(last.filename).name}, line {last.lineno}: a mistake in the program, please report it)"


def archive(directories: Sequence[Path]) -> None:
    """Pack targets that were finished before; that one cannot be packed is no reason not to fold the others."""
    for directory in directories:
        try:
            write_archive(directory)
        except OSError as error:
            tqdm.write(f"{directory.name}: not packed: {error.strerror or error}", file=sys.stderr)


def close(queue: Queue, output: Path) -> int:
    """Once for all processes: what failed, in a file and as the exit code."""
    failures = queue.failures()
    write_failures(output, failures)
    _write_index(Index(output), failures)
    if len(queue):
        print(f"all targets on one page: {output / INDEX_FILE}")
    if failures:
        print(f"helixfold: {len(failures)} of {len(queue)} targets failed, see {output}", file=sys.stderr)
    return SOME_FAILED if failures else 0


def _write_index(index: Index, failures: Mapping[str, str]) -> None:
    """The page of the batch; that it cannot be written is no reason to end one."""
    try:
        index.write(failures)
    except OSError as error:
        tqdm.write(f"helixfold: {index.output / INDEX_FILE}: not written: {error.strerror}", file=sys.stderr)


def _summary(directory: Path, order: Sequence[Finished]) -> str:
    best = order[0]
    ptm = "" if best.ptm is None else f", pTM {best.ptm:.2f}"
    plural = "" if best.num_recycles == 1 else "s"
    recycles = f"{best.num_recycles} recycle{plural}{' (settled)' if best.converged else ''}"
    return f"{directory.name}: mean pLDDT {best.ranking_confidence:.1f}{ptm}, {best.name}, {recycles} -> {directory}"
