"""The process in which a worker predicts. It runs one job after another and is replaced if it dies or is stopped."""

import json
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from data_pipeline.io.child_processes import end_with_parent, interruptions_postponed, leave_interruptions_to_parent
from data_pipeline.io.errors import InputError, SearchError, printable
from helixfold.apps.serve.worker.options import WorkerOptions

_SPAWN = multiprocessing.get_context("spawn")
_READ_BYTES: Final = 2**16
_SECONDS_BETWEEN_CHECKS: Final = 1.0
_SECONDS_TO_END: Final = 5.0  # to end a running search program and remove its files
_MAX_STAGES: Final = 200  # the last ones are stored
_MAX_LINES: Final = 40  # the last ones are stored


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a job in the predicting process, or the error with which it failed.

    `has_died` is true if the process itself ended, for example because it ran out of memory.
    """

    result: Any = None
    error: str | None = None
    has_died: bool = False


@dataclass
class Progress:
    """Progress of a job, parsed from the output of its process.

    `stages` come from the JSON lines of `--progress json`; `lines` are the last other lines.
    """

    stages: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    _partial_line: bytes = b""

    def read(self, content: bytes) -> None:
        """Parse further output of the process. A line without an end is completed by the next call."""
        *lines, self._partial_line = (self._partial_line + content).split(b"\n")
        self._partial_line = self._partial_line[-_READ_BYTES:]
        for line in lines:
            self._add(line.decode("utf-8", "replace").rpartition("\r")[2].strip())

    def _add(self, line: str) -> None:
        """Add a line of output to the stages or to the other lines."""
        try:
            content = json.loads(line) if line.startswith("{") else None
        except ValueError:
            content = None
        if isinstance(content, dict) and "stage" in content:
            stage = {"name": printable(str(content["stage"]), 90), "seconds": float(content.get("seconds", 0.0))}
            self.stages = [*self.stages, stage][-_MAX_STAGES:]
        elif line:
            self.lines = [*self.lines, printable(line, 300)][-_MAX_LINES:]

    def to_dict(self) -> dict[str, Any]:
        """Return the progress as sent to the server: all stages, and the last five lines."""
        return {"stages": self.stages, "lines": self.lines[-5:]}


class JobProcess:
    """A process that runs one job after another, with additional environment variables and a niceness."""

    def __init__(self, options: WorkerOptions, environment: Mapping[str, str] | None = None, niceness: int = 0) -> None:
        self._settings = options, dict(environment or {}), niceness
        self._process: Any = None

    def do(
        self, kind: str, content: Mapping[str, Any], directory: Path, should_continue: Callable[[Progress], bool]
    ) -> Outcome:
        """Run a job and return its outcome. Start the process if it is not running.

        `kind` is "prediction", "alignment" or "offers", `content` the request, and `directory` has the uploaded files.
        `should_continue` is called every second with the progress; the process is ended if it returns false.
        """
        if self._process is None:
            self._start()
        progress = Progress()
        try:
            self._calls.send((kind, dict(content), directory))
            while True:
                if self._has_answer(progress):
                    answer: Outcome = self._answers.recv()
                    self._drain(progress)
                    should_continue(progress)
                    return answer
                if not should_continue(progress):
                    self.stop()
                    return Outcome(error="stopped")
        except (EOFError, OSError):
            self._drain(progress)
            code = self._close()
            last_line = progress.lines[-1] if progress.lines else "none"
            return Outcome(error=f"the predicting process ended ({code}); its last line: {last_line}", has_died=True)

    @property
    def pid(self) -> int | None:
        """Return the id of the process; None if it is not running."""
        return None if self._process is None else self._process.pid

    def stop(self) -> None:
        """End the process and the search program that it waits for. The next job starts a new process."""
        if self._process is not None:
            self._process.terminate()
            self._process.join(_SECONDS_TO_END)
            self._process.kill()
            self._close()

    def _start(self) -> None:
        """Start the process, with pipes for its calls, its answers and its output."""
        self._calls, calls = _SPAWN.Pipe()
        self._answers, answers = _SPAWN.Pipe(duplex=False)
        self._printed, printed = _SPAWN.Pipe(duplex=False)
        child_ends = calls, answers, printed
        process = _SPAWN.Process(target=_serve, args=(*self._settings, child_ends), daemon=False)
        with interruptions_postponed():
            process.start()
        for child_end in child_ends:
            child_end.close()
        self._process = process

    def _has_answer(self, progress: Progress) -> bool:
        """Read the output for at most a second; return whether the process has answered or ended."""
        deadline = time.monotonic() + _SECONDS_BETWEEN_CHECKS
        while (seconds_left := deadline - time.monotonic()) > 0:
            readable, _, _ = select.select([self._answers.fileno(), self._printed.fileno()], [], [], seconds_left)
            if self._answers.fileno() in readable:
                return True
            if readable:
                content = os.read(self._printed.fileno(), _READ_BYTES)
                if not content:
                    raise EOFError
                progress.read(content)
        return False

    def _drain(self, progress: Progress) -> None:
        """Read the rest of the output into the progress."""
        while select.select([self._printed.fileno()], [], [], 0)[0]:
            content = os.read(self._printed.fileno(), _READ_BYTES)
            if not content:
                return
            progress.read(content)

    def _close(self) -> str:
        """Wait for the ended process, close its pipes, and return how it ended."""
        self._process.join(10)
        self._process.kill()
        self._process.join()
        exit_code = self._process.exitcode
        for each in (self._calls, self._answers, self._printed):
            each.close()
        self._process = None
        return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


def _serve(
    options: WorkerOptions,
    environment: Mapping[str, str],
    niceness: int,
    ends: tuple[Connection, Connection, Connection],
) -> None:
    """Run jobs until the worker ends; send the output to the worker."""
    calls, answers, printed = ends
    os.environ.update(environment)  # before NumPy and PyTorch, which read it, are imported
    os.nice(niceness)
    leave_interruptions_to_parent()
    # The exception lets clean-up code kill a running search program, which has its own session.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    end_with_parent()
    for descriptor in (1, 2):
        os.dup2(printed.fileno(), descriptor)
    # Slow imports that only this process needs.
    from tqdm import tqdm  # noqa: PLC0415

    from helixfold.apps.serve.worker.tasks import do  # noqa: PLC0415

    # By default, bars share a lock between processes. If this process were killed, Python would warn of a leak.
    tqdm.set_lock(threading.RLock())

    while True:
        try:
            kind, content, directory = calls.recv()
        except (EOFError, OSError):
            return
        try:
            outcome = Outcome(result=do(kind, content, directory, options))
        except (InputError, SearchError) as error:
            outcome = Outcome(error=str(error))
        except MemoryError:
            outcome = Outcome(error="not enough memory")
        except OSError as error:
            outcome = Outcome(error=f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))
        sys.stdout.flush()
        sys.stderr.flush()
        answers.send(outcome)
