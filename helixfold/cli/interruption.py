"""Ctrl-C in a command, which must not be raised where a library turns it into another error."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

INTERRUPTED = 130
_COMMANDS = str(Path(__file__).parent)
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
        self._is_repeated = False  # the next signal is this handler's own

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

    def _handle(self, _: int, frame: FrameType | None) -> None:
        importing_file = self._importing_file(frame)
        if importing_file is not None and importing_file.startswith(_COMMANDS):
            say_interrupted()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        is_second = self.is_requested and not self._is_repeated
        self.is_requested, self._is_repeated = True, False
        if is_second or importing_file is None:
            raise KeyboardInterrupt
        timer = threading.Timer(_SECONDS_BETWEEN_ATTEMPTS, self._repeat)
        timer.daemon = True
        timer.start()

    def _repeat(self) -> None:
        self._is_repeated = True
        # To the main thread, which may be waiting for something.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _importing_file(self, frame: FrameType | None) -> str | None:
        """Return the file of the function with the outermost import that is under way, None if there is none."""
        file = None
        while frame is not None and frame.f_code is not self._outermost:
            caller = frame.f_back
            if caller is not None and frame.f_code.co_filename.startswith(_IMPORT_SYSTEM):
                file = caller.f_code.co_filename
            frame = caller
        return file
