"""Requests to stop a run: a scheduler's time limit, a machine that is taken away, Ctrl-C."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED, TERMINATED = 130, 143
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A scheduler's signal reaches a rank directly and again through `torchrun`; both are one request.
_SAME_REQUEST = 3.0  # seconds


class StopRequest:
    """Request to stop a run, which a signal sets and the training loop checks between steps."""

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self.exit_code = TERMINATED  # of a run that was stopped

    def is_requested(self) -> bool:
        """Return whether the process was asked to stop."""
        return self._asked_at is not None

    @contextmanager
    def handling_signals(self) -> Iterator["StopRequest"]:
        """Treat SIGTERM and SIGINT as a request inside the context; a second signal ends the process as usual."""
        earlier = {number: signal.getsignal(number) for number in _SIGNALS}

        def ask(number: int, _: object) -> None:
            if self._asked_at is None:
                self._asked_at = time.monotonic()
                self.exit_code = INTERRUPTED if number == signal.SIGINT else TERMINATED
            elif time.monotonic() - self._asked_at > _SAME_REQUEST:
                signal.signal(number, earlier[signal.Signals(number)])
                signal.raise_signal(number)

        for number in _SIGNALS:
            signal.signal(number, ask)
        try:
            yield self
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)
