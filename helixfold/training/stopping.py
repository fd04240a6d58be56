"""Handle requests to stop a run: a scheduler's time limit or preemption, Ctrl-C, a closed terminal."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Exit codes of a stopped run, by signal.
_EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}
# A scheduler's signal reaches a rank directly and again through `torchrun`; both count as one request.
_SAME_REQUEST = 3.0  # seconds


class StopRequest:
    """A request to stop a run, which a signal sets and the training loop checks between steps."""

    def __init__(self) -> None:
        self._request_time: float | None = None
        self.exit_code = _EXIT_CODES[signal.SIGTERM]  # to return if the run was stopped

    def is_requested(self) -> bool:
        """Return whether a signal requested the run to stop."""
        return self._request_time is not None

    @contextmanager
    def handling_signals(self) -> Iterator["StopRequest"]:
        """Within the context, treat SIGTERM, SIGINT and SIGHUP as a request; a second signal ends the process.

        SIGHUP, which a closed terminal sends, stays ignored if it was ignored before (`nohup`).
        """
        earlier = {number: signal.getsignal(number) for number in _EXIT_CODES}
        if earlier[signal.SIGHUP] is signal.SIG_IGN:
            del earlier[signal.SIGHUP]

        def request(number: int, _: object) -> None:
            if self._request_time is None:
                self._request_time = time.monotonic()
                self.exit_code = _EXIT_CODES[signal.Signals(number)]
            elif time.monotonic() - self._request_time > _SAME_REQUEST:
                signal.signal(number, earlier[signal.Signals(number)])
                signal.raise_signal(number)

        for number in earlier:
            signal.signal(number, request)
        try:
            yield self
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)
