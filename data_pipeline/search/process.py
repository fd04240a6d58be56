"""Run external programs with bounded time and memory, and leave nothing of them behind.

A program runs without a shell and without input, in a process group of its own. However the call ends (normally, by the
time limit, an error, or Ctrl-C), every process of that group is killed and the program is reaped.
"""

import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO

from data_pipeline.io.errors import InputError, SearchError, error_reason, printable

_LOG = logging.getLogger(__name__)  # `helixfold --verbose` prints its records
_KEPT_BYTES = 2**16  # at the end of each stream
_CHUNK_BYTES = 2**16
_SHOWN_CHARACTERS = 400  # of a stream or a command, in an error
_LAST_OUTPUT_SECONDS = 0.5  # to wait for the end of the streams, which a child outside the group may hold open
_VERSION_SECONDS = 60.0
_REMOVAL_ATTEMPTS, _REMOVAL_PAUSE = 40, 0.05
# The package that installs each search program.
PACKAGES = {
    **dict.fromkeys(("jackhmmer", "hmmsearch", "hmmbuild"), "hmmer"),
    **dict.fromkeys(("hhblits", "hhsearch"), "hhsuite"),
}
# What programs need to start and to find their libraries and hh-suite's data; they get no other variables.
_ENVIRONMENT = ("PATH", "HOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "HHLIB")


def run_program(
    command: Sequence[str | Path], *, timeout: float | None, directory: Path, kept_bytes: int = _KEPT_BYTES
) -> subprocess.CompletedProcess[bytes]:
    """Run a program in `directory`, with its temporary files, for at most `timeout` seconds (None: no limit).

    Return the last `kept_bytes` of each stream; results of a program that writes files are read from these.

    Raise `SearchError` with the command, the exit code or signal and the end of the output if the program cannot start,
    fails, is killed by a signal or takes too long.
    """
    words = [str(word) for word in command]
    _LOG.debug("search command: %s", shlex.join(words))
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    environment |= {"LC_ALL": "C", "TMPDIR": str(directory)}
    try:
        process = subprocess.Popen(
            words,
            bufsize=0,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
        reason = error_reason(error)
        raise SearchError(f"{_name(words)} cannot be started: {reason}; command: {_shown_command(words)}") from error
    tails = (bytearray(), bytearray())
    streams = zip((process.stdout, process.stderr), tails, strict=True)
    readers = [threading.Thread(target=_keep_end, args=(*stream, kept_bytes), daemon=True) for stream in streams]
    problem = None
    with process:
        try:
            for reader in readers:
                reader.start()
            if process.wait(timeout) != 0:
                problem = _ending(process.returncode)
        except subprocess.TimeoutExpired:
            problem = f"did not finish within {timeout:g} s and was stopped"
        finally:
            _kill(process, readers)
    stdout, stderr = map(bytes, tails)
    if problem is not None:
        printed = _shown_end(stderr) or _shown_end(stdout) or "(nothing)"
        raise SearchError(f"{_name(words)} {problem}; it printed: {printed}; command: {_shown_command(words)}")
    return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)


def read_output(program: Path, path: Path) -> bytes:
    """Return the content of an output file of a successful program; raise `SearchError` if it is missing or empty."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    if not content:
        raise SearchError(f"{printable(program.name)} ended well but wrote no {printable(path.name)}")
    return content


def _keep_end(stream: IO[bytes], tail: bytearray, kept_bytes: int) -> None:
    """Read all that a program prints, and keep the last bytes in `tail`."""
    with suppress(OSError, ValueError):  # the stream was closed because a child outside the group holds it open
        while chunk := stream.read(_CHUNK_BYTES):
            tail += chunk
            del tail[:-kept_bytes]


def _kill(process: subprocess.Popen[bytes], readers: Sequence[threading.Thread]) -> None:
    """Kill every process of the program's group, reap the program and wait for the last of its output."""
    # A group's number is not reused while it has members. macOS forbids signals to a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for reader in readers:
        if reader.is_alive():  # a thread that was interrupted before its start cannot be joined
            reader.join(_LAST_OUTPUT_SECONDS)


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
    """Return the last lines of a stream as one line."""
    lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines()]
    text = " | ".join(line for line in lines if line)
    end = text if len(text) <= _SHOWN_CHARACTERS else f"...{text[-_SHOWN_CHARACTERS:]}"
    return printable(end, 2 * _SHOWN_CHARACTERS)


@contextmanager
def working_directory(parent: Path | None = None) -> Iterator[Path]:
    """Yield an empty directory for a program's files, in `parent` or the system's temporary folder; remove it after."""
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
    # A killed process may write for a moment longer, and put files into a folder that was just emptied.
    for _ in range(_REMOVAL_ATTEMPTS):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(_REMOVAL_PAUSE)
    raise SearchError(f"the temporary directory {printable(str(directory))} could not be removed; remove it by hand")


def find_program(name: str) -> Path | None:
    """Return the program of this name on the PATH, or None; `name` may also be a path."""
    path = shutil.which(name)
    return None if path is None else Path(path).absolute()


def require_program(name: str) -> Path:
    """Return the program on the PATH; raise an `InputError` that says which package to install if there is none."""
    program = find_program(name)
    if program is None:
        raise InputError(
            f"the program {name} was not found; install {PACKAGES[name]} and see that {name} is on the PATH"
        )
    return program


@lru_cache(maxsize=64)
def program_version(program: Path, argument: str = "-h") -> str:
    """Return the version that a program prints when it is run with `argument`, such as "3.3.2" or "14-7e284"."""
    with working_directory() as directory:
        output = run_program([program, argument], timeout=_VERSION_SECONDS, directory=directory)
    printed = (output.stdout + b"\n" + output.stderr).decode("utf-8", "replace")
    words = printed.split()
    if len(words) == 1:  # mmseqs, some builds of which are named by a commit
        return words[0]
    number = re.search(r"(?<![\w.])\d+(?:\.\d+)+", printed)
    if number is None:
        raise SearchError(f"{printable(str(program))} {argument} printed no version: {_shown_end(output.stdout)}")
    return number.group()
