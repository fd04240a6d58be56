"""A limit on the time of what might otherwise wait for ever, such as the reading of a pipe."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise AssertionError, which nobody catches, in what takes longer; for the main thread only."""

    def ended(signal_number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"nothing came back for {seconds} seconds")

    earlier = signal.signal(signal.SIGALRM, ended)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)
