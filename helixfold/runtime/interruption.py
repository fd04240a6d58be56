"""Ctrl-C in a command, which must not be raised where a library turns it into another error."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

INTERRUPTED, TERMINATED = 130, 143
_COMMANDS = str(Path(__file__).parents[1])
_IMPORT_SYSTEM = "<frozen importlib"  # beginning of the file names of its frames
_SECONDS_BETWEEN_ATTEMPTS = 0.05


def say_interrupted() -> None:
    """Print on stderr that a command was interrupted."""
    print("helixfold: interrupted; run the same command again to go on", file=sys.stderr)


class Interruption:
    """Handler of Ctrl-C, which raises `KeyboardInterrupt`, but not within an import.

    An import that is interrupted may end as an `ImportError`, or leave half a library behind. While a command imports
    what it needs, before it has done anything, the process ends at once. Later imports are waited for; a second Ctrl-C
    is raised in any case. `outermost` is the code of the function that handles the exception.
    """

    def __init__(self, outermost: CodeType) -> None:
        self._outermost = outermost
        self.is_requested = False
        self._is_ending = False  # by Ctrl-C or SIGTERM
        self._is_repeated = False  # the next signal is this handler's own
        self._timer: threading.Timer | None = None

    @contextmanager
    def handling_signal(self) -> Iterator[None]:
        """Handle SIGINT inside; leave it alone if the process ignores it or has a handler of its own."""
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def terminate(self, *_: object) -> None:
        """Handle SIGTERM: leave as after any error."""
        self._is_ending = True
        sys.exit(TERMINATED)

    def _handle(self, _: int, frame: FrameType | None) -> None:
        importing_file = self._importing_file(frame)
        if importing_file is not None and importing_file.startswith(_COMMANDS):
            say_interrupted()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        is_second = self.is_requested and not self._is_repeated
        self.is_requested, self._is_ending, self._is_repeated = True, True, False
        if is_second or importing_file is None:
            raise KeyboardInterrupt
        self._start_timer(self._repeat)

    @contextmanager
    def repeating_ignored(self) -> Iterator[None]:
        """Repeat, inside, a signal whose exception Python ignored.

        It ignores exceptions in callbacks of weak references and in `__del__`, and would only print a traceback. Once a
        signal ends the command, what fails there is not told: an object may have been interrupted while it was made.
        """
        report = sys.unraisablehook

        def repeat_or_report(ignored: "sys.UnraisableHookArgs") -> None:
            if issubclass(ignored.exc_type, KeyboardInterrupt):
                self._start_timer(self._repeat)
            elif issubclass(ignored.exc_type, SystemExit):
                self._start_timer(_terminate)
            elif not self._is_ending:
                report(ignored)

        sys.unraisablehook = repeat_or_report
        try:
            yield
        finally:
            sys.unraisablehook = report
            if self._timer is not None:
                self._timer.cancel()

    def _start_timer(self, action: Callable[[], None]) -> None:
        self._timer = threading.Timer(_SECONDS_BETWEEN_ATTEMPTS, action)
        self._timer.daemon = True
        self._timer.start()

    def _repeat(self) -> None:
        self._is_repeated = True
        _send(signal.SIGINT)

    def _importing_file(self, frame: FrameType | None) -> str | None:
        """Return the file of the function with the outermost import that is under way, None if there is none."""
        file = None
        while frame is not None and frame.f_code is not self._outermost:
            caller = frame.f_back
            if caller is not None and frame.f_code.co_filename.startswith(_IMPORT_SYSTEM):
                file = caller.f_code.co_filename
            frame = caller
        return file


def _terminate() -> None:
    _send(signal.SIGTERM)


def _send(number: int) -> None:
    """Send a signal to the main thread, which may be waiting for something."""
    signal.pthread_kill(threading.main_thread().ident or 0, number)
