"""The entry point of `helixfold`: run a command, and turn errors into messages and exit codes."""

import atexit
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import CodeType
from typing import NoReturn

from data_pipeline.io.errors import InputError, SearchError, printable
from helixfold.runtime.imports import collecting_no_garbage
from helixfold.runtime.interruption import INTERRUPTED, Interruption, print_interrupted
from helixfold.runtime.standard_streams import OUTPUT_NAME, command_streams, is_verbose, restored_verbosity

_MAX_MESSAGE_CHARACTERS = 4000
FAILED, WRONG_INPUT, SERVER_UNAVAILABLE = 1, 2, 3  # exit codes
_WORDS_NEEDING_LITTLE_MEMORY = {"-h", "--help", "--version"}
# Minimum bytes of address space. With less, PyTorch and NumPy abort the process during import (on two processors).
_MIN_ADDRESS_SPACE = 768 * 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name, by default `sys.argv`, and return its exit code.

    0: success, 1: something failed, 2: invalid input, 3: a server is unavailable, 130: interrupted, 143: terminated,
    129: the terminal was closed.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    with restored_verbosity(), ending_command(main.__code__) as end:
        if (
            (limit := _address_space()) is not None
            and limit < _MIN_ADDRESS_SPACE
            and not _WORDS_NEEDING_LITTLE_MEMORY & {*words}
        ):
            raise MemoryError
        # The import is here, so that Ctrl-C during imports is handled as at any other time.
        with collecting_no_garbage():
            from helixfold.cli.app import run

        end.result = run(words)
    if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while libraries are unloaded would print tracebacks
    return end.code


def command() -> NoReturn:
    """Run `main` and exit the process immediately.

    A normal exit takes 0.1 s to tear down imported modules after PyTorch. Threads are still joined, exit functions
    called and streams flushed.
    """
    code = main()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, such as by a library's exit function, or absent
            stream.flush()
    os._exit(code)


def exit_code(action: Callable[[], object]) -> int:
    """Call a function and return an exit code for its result or its error, as `main` does for commands."""
    with restored_verbosity(), ending_command(exit_code.__code__) as end:
        end.result = action()
    return end.code


@dataclass(kw_only=True)
class CommandEnd:
    """The end of a command: the exit code of a failure, or else its result as the exit code, by default 0."""

    result: object = None
    failure: int | None = None

    @property
    def code(self) -> int:
        """The exit code of the failure, else the result if it is a whole number, else 0."""
        if self.failure is not None:
            return self.failure
        return self.result if isinstance(self.result, int) else 0


@contextmanager
def ending_command(outermost: CodeType) -> Iterator[CommandEnd]:
    """Run a command inside and turn exceptions into a `CommandEnd`; see `Interruption` for `outermost`.

    Errors of input, searches and files are printed as one line each, with exit code 1, 2 or 3.
    """
    interruption, end = Interruption(outermost), CommandEnd()
    # On SIGTERM (kill, the time limit of a scheduler) and SIGHUP (a closed terminal, but not under `nohup`), clean up
    # search programs and their files as after any error.
    numbers = {signal.SIGTERM} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else {signal.SIGTERM, signal.SIGHUP}
    earlier = {number: signal.signal(number, interruption.terminate) for number in numbers}
    try:
        with command_streams(), interruption.handling_signal(), interruption.repeating_ignored():
            try:
                yield end
                sys.stdout.flush()
            except SystemExit as error:
                # Freeing half-built objects after an interruption may raise errors; here they are not printed.
                traceback.clear_frames(error.__traceback__)
                if interruption.termination is not None:
                    from multiprocessing import parent_process  # slow, and needed only here

                    if parent_process() is None:  # a parent prints it for its processes
                        print_interrupted("terminated")
                raise
            except (KeyboardInterrupt, Exception) as error:
                if (code := _failure(error, interruption)) is None:
                    raise
                if is_verbose():
                    traceback.print_exception(error)
                end.failure = code
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _failure(error: BaseException, interruption: Interruption) -> int | None:
    """Print an expected error and return its exit code, or return None for an unexpected one."""
    # A library may have turned the interruption into another exception.
    if isinstance(error, KeyboardInterrupt) or interruption.is_requested:
        print_interrupted()
        return INTERRUPTED
    match error:
        case InputError():
            for line in error.lines:
                _say(line)
            return SERVER_UNAVAILABLE if error.is_temporary else WRONG_INPUT
        case ImportError() | MemoryError() | SystemError() if (limit := _address_space()) is not None:
            _say(
                f"the limit of {limit / 2**20:,.0f} MiB of address space (ulimit -v, or the batch system's limit of "
                "virtual memory) is too small for PyTorch; raise it to some GiB, or remove it (ulimit -v unlimited) "
                "and limit memory with a control group or --memory"
            )
            return WRONG_INPUT
        case SearchError():
            _say(str(error))
        case BrokenPipeError(filename=name) if name == OUTPUT_NAME:
            pass  # the reader of the pipe, such as `head`, has stopped
        case OSError():
            # An error of the machine, such as a full disk, for which a traceback would not help.
            _say(f"{'' if error.filename is None else f'{error.filename}: '}{error.strerror or error}")
        case _:
            return None
    return FAILED


def _address_space() -> int | None:
    """Return the limit of the address space of this process in bytes, or None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _say(problem: str) -> None:
    """Print an error as one line without control characters, which a file name may contain."""
    print(f"helixfold: error: {printable(problem, _MAX_MESSAGE_CHARACTERS)}", file=sys.stderr)


if __name__ == "__main__":
    command()
