"""The process in which a worker predicts, which stays for the next job and is replaced when it dies or is stopped."""

import json
import multiprocessing
import os
import select
import signal
import sys
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
_CHUNK: Final = 2**16
_SECONDS_BETWEEN_SIGNS: Final = 1.0
_SECONDS_TO_END: Final = 5.0  # the search program that the process has started, and its files
_MOST_STAGES: Final = 200
_MOST_LINES: Final = 40


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended in the process: what it returned, or why it failed.

    `has_died` says that the process itself ended, for example for want of memory.
    """

    result: Any = None
    error: str | None = None
    has_died: bool = False


@dataclass
class Progress:
    """Output of the process: its stages in the JSON lines of `--progress json`, and the last of its other lines."""

    stages: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    _rest: bytes = b""

    def read(self, content: bytes) -> None:
        """Add what was printed."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        self._rest = self._rest[-_CHUNK:]
        for line in lines:
            self._add(line.decode("utf-8", "replace").rpartition("\r")[2].strip())

    def _add(self, line: str) -> None:
        try:
            content = json.loads(line) if line.startswith("{") else None
        except ValueError:
            content = None
        if isinstance(content, dict) and "stage" in content:
            stage = {"name": printable(str(content["stage"]), 90), "seconds": float(content.get("seconds", 0.0))}
            self.stages = [*self.stages, stage][-_MOST_STAGES:]
        elif line:
            self.lines = [*self.lines, printable(line, 300)][-_MOST_LINES:]

    def to_dict(self) -> dict[str, Any]:
        """Return what the server is told."""
        return {"stages": self.stages, "lines": self.lines[-5:]}


class JobProcess:
    """A process that does one job after the other, with more variables in its environment and of some niceness."""

    def __init__(self, options: WorkerOptions, environment: Mapping[str, str] | None = None, niceness: int = 0) -> None:
        self._settings = options, dict(environment or {}), niceness
        self._process: Any = None

    def do(
        self, kind: str, content: Mapping[str, Any], directory: Path, keep_on: Callable[[Progress], bool]
    ) -> Outcome:
        """Do a job and return how it ended; `keep_on` is asked every second, and the process killed once it says no."""
        if self._process is None:
            self._start()
        progress = Progress()
        try:
            self._calls.send((kind, dict(content), directory))
            while True:
                if self._has_answer(progress):
                    answer: Outcome = self._answers.recv()
                    self._drain(progress)
                    keep_on(progress)
                    return answer
                if not keep_on(progress):
                    self.stop()
                    return Outcome(error="stopped")
        except (EOFError, OSError):
            self._drain(progress)
            code = self._ended()
            last = progress.lines[-1] if progress.lines else "none"
            return Outcome(error=f"the predicting process ended ({code}); its last line: {last}", has_died=True)

    @property
    def pid(self) -> int | None:
        """Return the id of the process, if there is one."""
        return None if self._process is None else self._process.pid

    def stop(self) -> None:
        """End the process and the search program that it waits for; its files are thrown away."""
        if self._process is not None:
            self._process.terminate()
            self._process.join(_SECONDS_TO_END)
            self._process.kill()
            self._ended()

    def _start(self) -> None:
        self._calls, calls = _SPAWN.Pipe()
        self._answers, answers = _SPAWN.Pipe(duplex=False)
        self._printed, printed = _SPAWN.Pipe(duplex=False)
        ends = calls, answers, printed
        process = _SPAWN.Process(target=_serve, args=(*self._settings, ends), daemon=False)
        with interruptions_postponed():
            process.start()
        for end in ends:
            end.close()
        self._process = process

    def _has_answer(self, progress: Progress) -> bool:
        """Read what is printed for a second at most; return whether the process has answered, or has ended."""
        until = time.monotonic() + _SECONDS_BETWEEN_SIGNS
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([self._answers.fileno(), self._printed.fileno()], [], [], left)
            if self._answers.fileno() in ready:
                return True
            if ready:
                content = os.read(self._printed.fileno(), _CHUNK)
                if not content:
                    raise EOFError
                progress.read(content)
        return False

    def _drain(self, progress: Progress) -> None:
        while select.select([self._printed.fileno()], [], [], 0)[0]:
            content = os.read(self._printed.fileno(), _CHUNK)
            if not content:
                return
            progress.read(content)

    def _ended(self) -> str:
        self._process.join(10)
        self._process.kill()
        self._process.join()
        code = self._process.exitcode
        for each in (self._calls, self._answers, self._printed):
            each.close()
        self._process = None
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _serve(
    options: WorkerOptions,
    environment: Mapping[str, str],
    niceness: int,
    ends: tuple[Connection, Connection, Connection],
) -> None:
    """Do jobs until the worker ends; what is printed goes to the worker."""
    calls, answers, printed = ends
    os.environ.update(environment)  # before NumPy and PyTorch, which read it, are imported
    os.nice(niceness)
    leave_interruptions_to_parent()
    # An exception, so that a search program, which has a session of its own, is killed on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    end_with_parent()
    for number in (1, 2):
        os.dup2(printed.fileno(), number)
    from helixfold.apps.serve.worker.tasks import do  # noqa: PLC0415  # takes long, and the worker itself needs none of it

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
