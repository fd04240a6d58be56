"""Being asked to end: a scheduler's time limit, a machine that is taken away, Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Remembers that the process was asked to end, for the training loop to look at between steps."""

    def __init__(self) -> None:
        self._asked = False

    def is_asked(self) -> bool:
        return self._asked

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Take SIGTERM and SIGINT as a request while this lasts; a second one ends the process as usual."""
        earlier = {number: signal.getsignal(number) for number in _SIGNALS}

        def ask(number: int, _: object) -> None:
            self._asked = True
            signal.signal(number, earlier[signal.Signals(number)])

        for number in _SIGNALS:
            signal.signal(number, ask)
        try:
            yield self
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)
