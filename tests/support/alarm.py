"""A time limit for code that might wait for ever, such as reading a pipe."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise AssertionError in code that takes longer; in the main thread only."""

    def ended(signal_number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"nothing came back for {seconds} seconds")

    earlier = signal.signal(signal.SIGALRM, ended)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)
