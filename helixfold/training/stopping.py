"""Handle requests to stop a run: a scheduler's time limit or preemption, Ctrl-C, a closed terminal."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Exit codes of a stopped run, by the signal that stopped it.
_EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}
# A scheduler's signal reaches a rank directly and again through `torchrun`; both count as one request.
_SAME_REQUEST = 3.0  # seconds


class StopRequest:
    """A request to stop a run, which a signal sets and the training loop checks between steps.

    `exit_code` is the exit code for the signal: 143 for SIGTERM and before any signal, 130 for SIGINT and 129 for
    SIGHUP.
    """

    def __init__(self) -> None:
        self._request_time: float | None = None
        self.exit_code = _EXIT_CODES[signal.SIGTERM]

    def is_requested(self) -> bool:
        """Return whether a signal requested the run to stop."""
        return self._request_time is not None

    @contextmanager
    def handling_signals(self) -> Iterator["StopRequest"]:
        """Context that yields this object, and in which SIGTERM, SIGINT and SIGHUP set the request.

        A second signal more than three seconds later has its usual effect, and ends the process. SIGHUP, which a closed
        terminal sends, stays ignored if it was ignored before (`nohup`). The earlier handlers are restored at the end.
        """
        earlier_handlers = {number: signal.getsignal(number) for number in _EXIT_CODES}
        if earlier_handlers[signal.SIGHUP] is signal.SIG_IGN:
            del earlier_handlers[signal.SIGHUP]

        def request(number: int, _: object) -> None:
            if self._request_time is None:
                self._request_time = time.monotonic()
                self.exit_code = _EXIT_CODES[signal.Signals(number)]
            elif time.monotonic() - self._request_time > _SAME_REQUEST:
                signal.signal(number, earlier_handlers[signal.Signals(number)])
                signal.raise_signal(number)

        for number in earlier_handlers:
            signal.signal(number, request)
        try:
            yield self
        finally:
            for number, handler in earlier_handlers.items():
                signal.signal(number, handler)
