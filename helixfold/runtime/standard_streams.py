"""Standard output and error behind which there may be a closed terminal, a full disk or a closed pipe.

None of these ends a command whose results are files.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, Literal, TextIO, cast

OUTPUT_NAME = "standard output"
Verbosity = Literal["quiet", "normal", "verbose"]
VERBOSITY = "HELIXFOLD_VERBOSITY"  # which the processes of a command inherit


@contextmanager
def command_streams() -> Iterator[None]:
    """Give a command a stderr that never fails, and a stdout that names itself in its `OSError`.

    A stream that the caller closed is the null device inside. What cannot be written in the end is dropped, as Python
    would try once more and change the exit code.
    """
    _open_closed_descriptors()
    with open(os.devnull, "w") as null:
        output, errors = sys.stdout or null, sys.stderr or null
        with redirect_stdout(_guard(output, OUTPUT_NAME)), redirect_stderr(_guard(errors)):
            try:
                yield
            finally:
                _write_or_drop(output)
                _write_or_drop(errors)


@contextmanager
def optional_output() -> Iterator[None]:
    """Ignore inside that stdout cannot be written: the results of the command are files, and it only tells of them."""
    output: TextIO | None = sys.stdout
    if output is None:
        yield
        return
    with redirect_stdout(_guard(output)):
        try:
            yield
        finally:
            _write_or_drop(output)


class _GuardedStream:
    """Text stream that ignores its `OSError`, or raises it with the stream's `name`.

    Characters that the stream's encoding does not have are written as escapes.
    """

    def __init__(self, stream: TextIO, name: str | None) -> None:
        self._stream, self._name = stream, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._guarding():
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:
                self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        return len(text)

    def flush(self) -> None:
        with self._guarding():
            self._stream.flush()

    def isatty(self) -> bool:
        """Return whether bars may be drawn: not with --quiet, even on a terminal."""
        return self._stream.isatty() and not is_quiet()

    @contextmanager
    def _guarding(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._name is not None:
                error.filename = self._name
                raise


def _guard(stream: TextIO, name: str | None = None) -> TextIO:
    return cast(TextIO, _GuardedStream(stream, name))


def _open_closed_descriptors() -> None:
    """Open the null device in place of closed standard streams.

    Otherwise the next files take their numbers, and what libraries print is written into them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number is this one


def _write_or_drop(stream: TextIO) -> None:
    """Write what a stream still holds; if it cannot be written, to the null device."""
    try:
        stream.flush()
    except OSError:
        number = stream.fileno()
        own, null = os.dup(number), os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        with suppress(OSError):
            stream.flush()
        os.dup2(own, number)
        os.close(own)
        os.close(null)


def set_verbosity(verbosity: Verbosity) -> None:
    """Choose what this process and those that it starts print, until `restored_verbosity` ends."""
    os.environ[VERBOSITY] = verbosity
    _print_details()


def is_quiet() -> bool:
    """Return whether only errors, warnings and what the user asked for are printed."""
    return os.environ.get(VERBOSITY) == "quiet"


def is_verbose() -> bool:
    """Return whether details are printed that help to find a problem."""
    return os.environ.get(VERBOSITY) == "verbose"


@contextmanager
def restored_verbosity() -> Iterator[None]:
    """Let a process print what it printed before, once a command in it has ended."""
    earlier = os.environ.get(VERBOSITY)
    _print_details()
    try:
        yield
    finally:
        os.environ.pop(VERBOSITY, None)
        if earlier is not None:
            os.environ[VERBOSITY] = earlier
        _print_details()


def print_summary(text: object) -> None:
    """Print on stdout, above the bars, what a command did or found; the results are in files. Nothing with --quiet."""
    if not is_quiet():
        _write_above_bars(str(text), sys.stdout)


def print_note(text: str) -> None:
    """Print a line of the program on stderr, above the bars; nothing with --quiet."""
    if not is_quiet():
        _write_above_bars(f"helixfold: {text}", sys.stderr)


def print_detail(text: str) -> None:
    """Print a line on stderr with --verbose only."""
    if is_verbose():
        _write_above_bars(f"helixfold: {text}", sys.stderr)


def _write_above_bars(text: str, stream: TextIO) -> None:
    from tqdm import tqdm  # noqa: PLC0415  `helixfold --help` does without

    tqdm.write(text, file=stream)


def _print_details() -> None:
    """Print the log records of both packages with --verbose; `data_pipeline` has no other way to print details."""
    if not is_verbose() and "logging" not in sys.modules:
        return
    import logging  # noqa: PLC0415  `helixfold --help` does without

    class Details(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            print_detail(self.format(record))

    for name in ("helixfold", "data_pipeline"):
        logger = logging.getLogger(name)
        logger.handlers = [Details()] if is_verbose() else []
        logger.setLevel(logging.DEBUG if is_verbose() else logging.NOTSET)
