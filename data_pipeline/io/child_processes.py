"""Start processes that leave Ctrl-C to their parent, and end when it ends."""

import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_CLEANUP_SECONDS = 5.0  # for a process whose parent has ended
_NOTICE_SECONDS = 2.0  # between a lost connection to the parent and the news of its end


@contextmanager
def interruptions_postponed() -> Iterator[None]:
    """Postpone Ctrl-C while processes are started; they begin with it blocked, until `leave_interruptions_to_parent`.

    It reaches all processes of a terminal, and would print a traceback of each that still imports modules, or that
    still waits for its arguments.
    """
    multiprocessing.resource_tracker.ensure_running()  # which unblocks SIGINT if it is started by the first process
    came: list[int] = []
    # Another thread may receive the signal, so that blocking it in this one does not postpone its handler.
    handler = signal.getsignal(signal.SIGINT)
    is_postponed = callable(handler) and threading.current_thread() is threading.main_thread()
    if is_postponed:
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if is_postponed:
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def leave_interruptions_to_parent() -> None:
    """Ignore SIGINT in this process: its parent handles Ctrl-C and ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def end_with_parent() -> None:
    """End this process by SIGTERM when its parent dies, and if it does not end within seconds, at once."""
    threading.Thread(target=_wait_for_end_of_parent, daemon=True).start()


def parent_has_ended() -> bool:
    """Return whether the parent has ended; after a lost connection to it, that may be known a moment later."""
    parent = multiprocessing.parent_process()
    return parent is not None and bool(multiprocessing.connection.wait([parent.sentinel], _NOTICE_SECONDS))


def _wait_for_end_of_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        # To the main thread, which may be waiting for something.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        time.sleep(_CLEANUP_SECONDS)
        os._exit(1)
