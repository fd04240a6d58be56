"""Standard output and error that may be connected to a closed terminal, a full disk or a closed pipe.

These do not end a command whose results are files. Also the verbosity of messages.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, Literal, TextIO, cast

OUTPUT_NAME = "standard output"  # the file name of errors of writing to stdout
Verbosity = Literal["quiet", "normal", "verbose"]
VERBOSITY = "HELIXFOLD_VERBOSITY"  # environment variable, inherited by the processes of a command


@contextmanager
def command_streams() -> Iterator[None]:
    """Replace stderr by a stream that never fails, and stdout by one whose `OSError` names it.

    A stream that the caller closed is the null device inside. Text that cannot be written at the end is dropped,
    because Python would try again and change the exit code.
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
    """Ignore errors of writing to stdout inside, for commands whose results are files."""
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
    """Text stream that ignores `OSError`, or raises it with `name` as the file name.

    Characters that are not in the stream's encoding are written as escapes.
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
        """Return whether progress bars may be drawn: on a terminal, but not with --quiet."""
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
    """Return a `_GuardedStream` of a stream, typed as text stream."""
    return cast(TextIO, _GuardedStream(stream, name))


def _open_closed_descriptors() -> None:
    """Open the null device for closed standard streams.

    Otherwise the next files get their descriptors, and output of libraries is written into these files.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # Opening a file takes the lowest free descriptor, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _write_or_drop(stream: TextIO) -> None:
    """Flush a stream; if this fails, drop the buffered text."""
    try:
        stream.flush()
    except OSError:
        descriptor = stream.fileno()
        original, null = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        with suppress(OSError):
            stream.flush()
        os.dup2(original, descriptor)
        os.close(original)
        os.close(null)


def set_verbosity(verbosity: Verbosity) -> None:
    """Set the verbosity of this process and its child processes in the environment, until `restored_verbosity` ends."""
    os.environ[VERBOSITY] = verbosity
    _print_details()


def is_quiet() -> bool:
    """Return whether only errors, warnings and requested output are printed."""
    return os.environ.get(VERBOSITY) == "quiet"


def is_verbose() -> bool:
    """Return whether details for finding a problem are printed."""
    return os.environ.get(VERBOSITY) == "verbose"


@contextmanager
def restored_verbosity() -> Iterator[None]:
    """Restore the verbosity at the end of the context to its value at the beginning."""
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
    """Print a summary of a command on stdout, above the bars; nothing with --quiet."""
    if not is_quiet():
        _write_above_bars(str(text), sys.stdout)


def print_note(text: str) -> None:
    """Print a line on stderr after the name of the program, above the bars; nothing with --quiet."""
    if not is_quiet():
        _write_above_bars(f"helixfold: {text}", sys.stderr)


def print_detail(text: str) -> None:
    """Print a line on stderr after the name of the program, above the bars, with --verbose only."""
    if is_verbose():
        _write_above_bars(f"helixfold: {text}", sys.stderr)


def _write_above_bars(text: str, stream: TextIO) -> None:
    from tqdm import tqdm  # noqa: PLC0415  `helixfold --help` does without

    tqdm.write(text, file=stream)


def _print_details() -> None:
    """Print the log records of both packages with --verbose; `data_pipeline` prints details only this way."""
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
