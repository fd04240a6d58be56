"""Signals that end a command. Ctrl-C must not be raised where a library converts it to another error."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

INTERRUPTED, TERMINATED = 130, 143  # exit codes after Ctrl-C and SIGTERM
# Folder of the package, whose imports are a command's first ones.
_PACKAGE_FOLDER = str(Path(__file__).parents[1])
_IMPORT_SYSTEM_PREFIX = "<frozen importlib"  # prefix of the file names of its frames
_SECONDS_BETWEEN_ATTEMPTS = 0.05


def print_interrupted(what: str = "interrupted") -> None:
    """Print on stderr that the command was interrupted, or `what` else happened to it."""
    print(f"helixfold: {what}; run the same command again to resume", file=sys.stderr)


class Interruption:
    """Handler of Ctrl-C that raises `KeyboardInterrupt`, but not within an import.

    An interrupted import may raise `ImportError` or leave a library half imported. During a command's first imports,
    before it has done anything, the process ends at once. Later imports are completed first. A second Ctrl-C is always
    raised. `outermost` is the code of the function that handles the exception.
    """

    def __init__(self, outermost: CodeType) -> None:
        """Create the handler; `outermost` is the code of the function that handles the exception."""
        self._outermost = outermost
        self.is_requested = False
        self.termination: int | None = None  # SIGTERM or SIGHUP, once received
        self._is_ending = False  # after any of these signals
        self._is_repeated = False  # the next signal was sent by this handler
        self._timer: threading.Timer | None = None

    @contextmanager
    def handling_signal(self) -> Iterator[None]:
        """Handle SIGINT inside the context, unless the process ignores it or has its own handler."""
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def terminate(self, number: int, _: object) -> None:
        """Handle SIGTERM or SIGHUP: raise SystemExit with code 143 or 129, so that clean-up code runs."""
        self.termination, self._is_ending = number, True
        sys.exit(128 + number)

    def _handle(self, _: int, frame: FrameType | None) -> None:
        """Handle SIGINT: end the process, raise `KeyboardInterrupt`, or try again after the current import."""
        importing_file = self._importing_file(frame)
        if importing_file is not None and importing_file.startswith(_PACKAGE_FOLDER):
            print_interrupted()
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
        """Repeat signals inside the context whose exceptions Python ignored.

        Python ignores exceptions in callbacks of weak references and in `__del__`, and only prints a traceback. Once a
        signal ends the command, other exceptions there are not printed, because an object may be incomplete.
        """
        report = sys.unraisablehook

        def repeat_or_report(ignored: "sys.UnraisableHookArgs") -> None:
            if issubclass(ignored.exc_type, KeyboardInterrupt):
                self._start_timer(self._repeat)
            elif issubclass(ignored.exc_type, SystemExit):
                self._start_timer(self._terminate)
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
        """Call `action` in another thread a moment later."""
        self._timer = threading.Timer(_SECONDS_BETWEEN_ATTEMPTS, action)
        self._timer.daemon = True
        self._timer.start()

    def _repeat(self) -> None:
        """Send SIGINT to the main thread again, marked as repeated."""
        self._is_repeated = True
        _send(signal.SIGINT)

    def _terminate(self) -> None:
        """Send the signal of `terminate` to the main thread again."""
        _send(self.termination or signal.SIGTERM)

    def _importing_file(self, frame: FrameType | None) -> str | None:
        """Return the file of the function with the outermost running import; None if no import is running."""
        file = None
        while frame is not None and frame.f_code is not self._outermost:
            caller = frame.f_back
            if caller is not None and frame.f_code.co_filename.startswith(_IMPORT_SYSTEM_PREFIX):
                file = caller.f_code.co_filename
            frame = caller
        return file


def _send(signal_number: int) -> None:
    """Send a signal to the main thread, which may be waiting."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal_number)
