"""Run commands in processes that are ended at a chosen change of a file or moment, by any signal."""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.training.ranks import SERVER

# Audit events of Python that change what a directory holds; `open` counts if it may write.
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.utime"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_ENDED_WITHIN = 30.0  # seconds after the parent for the processes that it started


@dataclass(frozen=True)
class Kill:
    """Which signal is sent when and to whom: before a numbered change of a file, or after seconds."""

    signal: int
    is_of_group: bool = False
    before_change: int | None = None
    seconds: float = 0.0

    def strike(self, process: int) -> None:
        """Send the signal."""
        (os.killpg if self.is_of_group else os.kill)(process, self.signal)


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, what it printed, and how many changes of files it made."""

    code: int
    printed: str
    changes: int


class _Changes:
    """Counts the changes of files below a directory before they are made, and does something before one of them."""

    def __init__(self, directory: Path, number: int | None, action: Callable[[], None]) -> None:
        self.count = 0
        self._directory, self._number, self._action = os.fsencode(directory), number, action

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if not arguments[2] & _WRITES:
                return
        elif event not in _CHANGES:
            return
        if any(isinstance(part, str | bytes) and os.fsencode(part).startswith(self._directory) for part in arguments):
            self.count += 1
            if self.count == self._number:
                self._action()


def end(
    command: Callable[[Sequence[str]], int],
    arguments: Sequence[str],
    output: Path,
    kill: Kill | None = None,
    action: Callable[[], None] | None = None,
) -> Ended:
    """Run a command in a session of its own and wait until it and all processes that it started have ended.

    Changes are counted of files below `output`; instead of a kill, `action` may be done before one of them. What is
    kept in the temporary directory must be gone, unless no handler could run.
    """
    scratch, printed = output.parent / "scratch", output.parent / "printed.txt"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    printed.write_text("")
    counted = output.parent / "changes.txt"
    counted.unlink(missing_ok=True)
    process = SERVER.Process(target=_run, args=(partial(command, list(arguments)), output, kill, action))
    process.start()
    assert process.pid is not None
    if kill is not None and kill.before_change is None:
        while not counted.exists() and process.is_alive():
            time.sleep(0.001)
        process.join(kill.seconds)
        with contextlib.suppress(ProcessLookupError):  # it may have ended, or not begun
            kill.strike(process.pid)
    process.join(300)
    assert process.exitcode is not None
    until = time.monotonic() + _ENDED_WITHIN
    while alive := living_processes(process.pid):
        assert time.monotonic() < until, [Path(f"/proc/{each}/cmdline").read_bytes() for each in alive]
        time.sleep(0.02)
    if process.exitcode != -signal.SIGKILL:
        # PyTorch makes the directory of its compiler's cache when it likes.
        left = [path for path in scratch.rglob("*") if not path.name.startswith("torchinductor_")]
        assert not left, (kill, left)
    return Ended(process.exitcode, printed.read_text(), int(counted.read_text() or 0))


def _run(command: Callable[[], int], output: Path, kill: Kill | None, action: Callable[[], None] | None) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background may ignore it
    os.environ["TMPDIR"], tempfile.tempdir = str(output.parent / "scratch"), None
    with (output.parent / "printed.txt").open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())

    def strike() -> None:
        if action is not None:
            action()
        elif kill is not None:
            kill.strike(os.getpid())

    changes = _Changes(output, None if kill is None else kill.before_change, strike)
    sys.addaudithook(changes)
    (output.parent / "changes.txt").write_text("0")  # says that the command begins
    try:
        sys.exit(command())
    finally:
        (output.parent / "changes.txt").write_text(str(changes.count))


def living_processes(leader: int) -> list[int]:
    """Return the living processes of the session that a process leads."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found
