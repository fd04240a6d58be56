"""The one door for other programs: bounded in time and memory, and nothing of them is left behind.

A program runs without a shell and without input, in a process group of its own; whatever ends the call (its own end,
the time limit, an error here, Ctrl-C), every process of that group is killed and the program is reaped.
"""

import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from data_pipeline.errors import InputError, SearchError, printable

_KEPT_BYTES = 2**16  # of each stream: its end
_CHUNK_BYTES = 2**16
_SHOWN_CHARACTERS = 400  # of a stream or a command, in an error
_POLL_SECONDS = 0.05  # how soon the end of a program is seen whose children hold its streams open
_VERSION_SECONDS = 60.0
_REMOVAL_ATTEMPTS, _REMOVAL_PAUSE = 40, 0.05
# What programs need to start, to find their libraries and hh-suite's data; the rest of the environment is not theirs.
_PASSED_ON = ("PATH", "HOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "HHLIB")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What a program left when it ended well; results themselves are read from the files that it wrote."""

    stdout: bytes  # at most the last 64 KiB
    stderr: bytes  # at most the last 64 KiB
    seconds: float


class _Tail:
    """The last bytes of a stream, however long it is."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def add(self, chunk: bytes) -> None:
        self._kept += chunk
        if len(self._kept) > 2 * _KEPT_BYTES:
            del self._kept[:-_KEPT_BYTES]

    def content(self) -> bytes:
        return bytes(self._kept[-_KEPT_BYTES:])


def run_program(command: Sequence[str | Path], *, timeout: float | None, directory: Path) -> Finished:
    """Run a program in `directory`, its temporary files there too, for at most `timeout` seconds (None: any time).

    A program that cannot start, fails, is killed by a signal or takes too long raises `SearchError`: the command, the
    exit code or signal and the end of what it printed.
    """
    words = [str(word) for word in command]
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment |= {"LC_ALL": "C", "TMPDIR": str(directory)}
    stdout, stderr = _Tail(), _Tail()
    ended = False
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            words,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SearchError(f"{_name(words)} cannot be started: {reason}; command: {_shown_command(words)}") from error
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        deadline = None if timeout is None else start + timeout
        ended = _follow(process, {process.stdout: stdout, process.stderr: stderr}, deadline)
    finally:
        _end(process)
    problem = None
    if not ended:
        problem = f"did not finish within {timeout:g} s and was stopped"
    elif process.returncode != 0:
        problem = _ending(process.returncode)
    if problem is not None:
        printed = _shown_end(stderr.content()) or _shown_end(stdout.content()) or "(nothing)"
        raise SearchError(f"{_name(words)} {problem}; it printed: {printed}; command: {_shown_command(words)}")
    return Finished(stdout=stdout.content(), stderr=stderr.content(), seconds=time.monotonic() - start)


def written_by(program: Path, path: Path) -> bytes:
    """The content of a file that a program that ended well should have written."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    if not content:
        raise SearchError(f"{printable(program.name)} ended well but wrote no {printable(path.name)}")
    return content


def _follow(process: subprocess.Popen[bytes], tails: dict[IO[bytes], _Tail], deadline: float | None) -> bool:
    """Read what the program prints until it ends (True) or its time is over (False)."""
    with selectors.DefaultSelector() as selector:
        for stream, tail in tails.items():
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, tail)
        while process.poll() is None:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                _drain(tails)
                return False
            if not selector.get_map():  # it closed its streams: nothing is left but to wait
                try:
                    process.wait(remaining)
                except subprocess.TimeoutExpired:
                    return False
                return True
            pause = _POLL_SECONDS if remaining is None else min(_POLL_SECONDS, remaining)
            for key, _ in selector.select(pause):
                if not _read(key.fd, key.data):
                    selector.unregister(key.fileobj)
    _drain(tails)
    return True


def _read(stream: int, tail: _Tail) -> int:
    """Move what is there now, at most one chunk, to the tail; 0 at the stream's end or when there is nothing."""
    try:
        chunk = os.read(stream, _CHUNK_BYTES)
    except BlockingIOError:
        return 0
    tail.add(chunk)
    return len(chunk)


def _drain(tails: dict[IO[bytes], _Tail]) -> None:
    """Read what is still in the pipes, but not what a surviving child goes on to write for ever."""
    for stream, tail in tails.items():
        size = 0
        while size < 2 * _KEPT_BYTES and (got := _read(stream.fileno(), tail)):
            size += got


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill every process of the program's group and reap the program."""
    # A group keeps its number from being used again while it has members. macOS forbids to signal one of zombies only.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _ending(returncode: int) -> str:
    if returncode > 0:
        return f"failed with exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = " (what the system does when memory runs out)" if returncode == -signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def _name(words: list[str]) -> str:
    return printable(Path(words[0]).name) if words else "no program"


def _shown_command(words: list[str]) -> str:
    return printable(shlex.join(words), _SHOWN_CHARACTERS)


def _shown_end(content: bytes) -> str:
    """The last lines of a stream, as one line."""
    lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines()]
    text = " | ".join(line for line in lines if line)
    end = text if len(text) <= _SHOWN_CHARACTERS else f"...{text[-_SHOWN_CHARACTERS:]}"
    return printable(end, 2 * _SHOWN_CHARACTERS)


@contextmanager
def working_directory(parent: Path | None = None) -> Iterator[Path]:
    """An empty directory for a program's files, in `parent` or where the system keeps such; always removed."""
    try:
        directory = Path(tempfile.mkdtemp(prefix="helixfold-", dir=parent)).resolve()
    except OSError as error:
        raise SearchError(
            f"no temporary directory could be made: {error}; set TMPDIR to a folder with space"
        ) from error
    try:
        yield directory
    finally:
        _remove(directory)


def _remove(directory: Path) -> None:
    # A killed process may still be writing for a moment, and put files into a folder that was just emptied.
    for _ in range(_REMOVAL_ATTEMPTS):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(_REMOVAL_PAUSE)
    raise SearchError(f"the temporary directory {printable(str(directory))} could not be removed; remove it by hand")


def find_program(name: str, *directories: Path) -> Path | None:
    """The program of this name on the PATH or else in `directories`; a name with a slash is looked for as it stands."""
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(str(directory) for directory in directories))
    return None if found is None else Path(found).absolute()


def require_program(name: str, package: str, *directories: Path) -> Path:
    """As `find_program`, with an `InputError` that says what to install."""
    found = find_program(name, *directories)
    if found is None:
        shown = printable(name)
        raise InputError(f"the program {shown} was not found; install {package} and see that {shown} is on the PATH")
    return found


@lru_cache(maxsize=64)
def program_version(program: Path, argument: str = "-h") -> str:
    """The version that a program prints when it is started with `argument`, such as "3.3.2" or "14-7e284"."""
    with working_directory() as directory:
        finished = run_program([program, argument], timeout=_VERSION_SECONDS, directory=directory)
    printed = (finished.stdout + b"\n" + finished.stderr).decode("utf-8", "replace")
    words = printed.split()
    if len(words) == 1:  # mmseqs; some of its builds are named by a commit
        return words[0]
    number = re.search(r"(?<![\w.])\d+(?:\.\d+)+", printed)
    if number is None:
        raise SearchError(f"{printable(str(program))} {argument} printed no version: {_shown_end(finished.stdout)}")
    return number.group()
