"""Run external programs with limits on time and memory, and clean up after them.

A program runs without a shell and without input, in its own process group. However the call ends (normally, at the time
limit, with an error, or by Ctrl-C), all processes of the group are killed and the program is reaped. `PACKAGES` has the
package that installs each search program.
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
_DEFAULT_KEPT_BYTES = 2**16  # of each stream that are returned
_CHUNK_BYTES = 2**16
_MAX_SHOWN_CHARACTERS = 400  # of a stream or a command in an error
_LAST_OUTPUT_SECONDS = 0.5  # to wait for the end of the streams; a child outside the group may keep them open
_VERSION_SECONDS = 60.0
_REMOVAL_ATTEMPTS, _REMOVAL_PAUSE = 40, 0.05
# The package that installs each search program.
PACKAGES = {
    **dict.fromkeys(("jackhmmer", "hmmsearch", "hmmbuild"), "hmmer"),
    **dict.fromkeys(("hhblits", "hhsearch"), "hhsuite"),
}
# Programs get only these variables: they need them to start, and to find their libraries and the data of hh-suite.
_PASSED_VARIABLES = ("PATH", "HOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "HHLIB")


def run_program(
    command: Sequence[str | Path], *, timeout: float | None, directory: Path, kept_bytes: int = _DEFAULT_KEPT_BYTES
) -> subprocess.CompletedProcess[bytes]:
    """Run a program in `directory` for at most `timeout` seconds (None: no limit).

    `directory` also receives its temporary files. Return the last `kept_bytes` of standard output and of standard
    error. The program gets only a few environment variables, and the locale C.

    Raise `SearchError` with the command, the exit code or signal, and the end of the output if the program cannot
    start, fails, is killed by a signal, or exceeds the time limit.
    """
    words = [str(word) for word in command]
    _LOG.debug("search command: %s", shlex.join(words))
    environment = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
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
    except (OSError, ValueError) as error:  # ValueError: NUL in an argument
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
        raise SearchError(f"{printable(program.name)} succeeded but did not write {printable(path.name)}")
    return content


def _keep_end(stream: IO[bytes], tail: bytearray, kept_bytes: int) -> None:
    """Read all output of a program, and keep the last bytes in `tail`."""
    with suppress(OSError, ValueError):  # the stream is closed below if a child outside the group keeps it open
        while chunk := stream.read(_CHUNK_BYTES):
            tail += chunk
            del tail[:-kept_bytes]


def _kill(process: subprocess.Popen[bytes], readers: Sequence[threading.Thread]) -> None:
    """Kill all processes of the program's group, reap the program, and wait for the end of its output."""
    # The id of a group is not reused while it has members. macOS forbids signals to a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for reader in readers:
        if reader.is_alive():  # an interrupt before the start leaves a thread that cannot be joined
            reader.join(_LAST_OUTPUT_SECONDS)


def _ending(returncode: int) -> str:
    """Return the words for a failed program's exit code, or for the signal that ended it if the code is negative."""
    if returncode > 0:
        return f"failed with exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = " (the system does this when memory runs out)" if returncode == -signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def _name(words: list[str]) -> str:
    return printable(Path(words[0]).name) if words else "no program"


def _shown_command(words: list[str]) -> str:
    return printable(shlex.join(words), _MAX_SHOWN_CHARACTERS)


def _shown_end(content: bytes) -> str:
    """Return the last lines of a stream as one line."""
    lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines()]
    text = " | ".join(line for line in lines if line)
    end = text if len(text) <= _MAX_SHOWN_CHARACTERS else f"...{text[-_MAX_SHOWN_CHARACTERS:]}"
    return printable(end, 2 * _MAX_SHOWN_CHARACTERS)


@contextmanager
def working_directory(parent: Path | None = None) -> Iterator[Path]:
    """Yield an empty temporary directory in `parent` or the system's temporary folder, and remove it afterwards.

    Raise `SearchError` if it cannot be created or removed.
    """
    try:
        directory = Path(tempfile.mkdtemp(prefix="helixfold-", dir=parent)).resolve()
    except OSError as error:
        raise SearchError(
            f"cannot create a temporary directory: {error}; set TMPDIR to a folder with free space"
        ) from error
    try:
        yield directory
    finally:
        _remove(directory)


def _remove(directory: Path) -> None:
    """Delete a directory with its files, in several attempts; raise `SearchError` if it remains."""
    # A killed process may still write for a moment, and add files to a folder that was just emptied.
    for _ in range(_REMOVAL_ATTEMPTS):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(_REMOVAL_PAUSE)
    raise SearchError(f"the temporary directory {printable(str(directory))} could not be removed; remove it by hand")


def find_program(name: str) -> Path | None:
    """Return the path of a program on the PATH, or None; `name` may also be a path."""
    path = shutil.which(name)
    return None if path is None else Path(path).absolute()


def require_program(name: str) -> Path:
    """Return the path of a program of `PACKAGES` on the PATH; raise `InputError` with its package if it is missing."""
    program = find_program(name)
    if program is None:
        raise InputError(
            f"the program {name} was not found; install {PACKAGES[name]} and make sure that {name} is on the PATH"
        )
    return program


@lru_cache(maxsize=64)
def program_version(program: Path, argument: str = "-h") -> str:
    """Return the version that a program prints when it is run with `argument`, such as "3.3.2" or "14-7e284".

    Results are cached by path and argument. Raise `SearchError` if the program fails or prints no version.
    """
    with working_directory() as directory:
        output = run_program([program, argument], timeout=_VERSION_SECONDS, directory=directory)
    printed = (output.stdout + b"\n" + output.stderr).decode("utf-8", "replace")
    words = printed.split()
    if len(words) == 1:  # mmseqs prints only the version, which may be a commit
        return words[0]
    version = re.search(r"(?<![\w.])\d+(?:\.\d+)+", printed)
    if version is None:
        raise SearchError(f"{printable(str(program))} {argument} did not print a version: {_shown_end(output.stdout)}")
    return version.group()
