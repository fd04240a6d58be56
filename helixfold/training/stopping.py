"""Requests to stop a run: a scheduler's time limit, a machine that is taken away, Ctrl-C, a closed terminal."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Exit codes of a run that was stopped, by the signal.
_EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}
# A scheduler's signal reaches a rank directly and again through `torchrun`; both are one request.
_SAME_REQUEST = 3.0  # seconds


class StopRequest:
    """Request to stop a run, which a signal sets and the training loop checks between steps."""

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self.exit_code = _EXIT_CODES[signal.SIGTERM]  # of a run that was stopped

    def is_requested(self) -> bool:
        """Return whether the process was asked to stop."""
        return self._asked_at is not None

    @contextmanager
    def handling_signals(self) -> Iterator["StopRequest"]:
        """Treat SIGTERM, SIGINT and SIGHUP as a request inside; a second signal ends the process as usual.

        SIGHUP, which a closed terminal sends, stays ignored if it is (`nohup`).
        """
        earlier = {number: signal.getsignal(number) for number in _EXIT_CODES}
        if earlier[signal.SIGHUP] is signal.SIG_IGN:
            del earlier[signal.SIGHUP]

        def ask(number: int, _: object) -> None:
            if self._asked_at is None:
                self._asked_at = time.monotonic()
                self.exit_code = _EXIT_CODES[signal.Signals(number)]
            elif time.monotonic() - self._asked_at > _SAME_REQUEST:
                signal.signal(number, earlier[signal.Signals(number)])
                signal.raise_signal(number)

        for number in earlier:
            signal.signal(number, ask)
        try:
            yield self
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)
