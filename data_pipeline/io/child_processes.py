"""Start child processes that leave Ctrl-C to their parent, and end together with it."""

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
_NOTICE_SECONDS = 2.0  # max delay between a lost connection to the parent and the notification of its end


@contextmanager
def interruptions_postponed() -> Iterator[None]:
    """Postpone Ctrl-C in the context while child processes are started.

    Ctrl-C reaches all processes of a terminal, and would print a traceback for each process that is still importing
    modules or waiting for its arguments. Child processes start with SIGINT blocked, until they call
    `leave_interruptions_to_parent`. A Ctrl-C that came in the context is raised again at its end.
    """
    multiprocessing.resource_tracker.ensure_running()  # if the first process starts it, it unblocks SIGINT
    postponed_signals: list[int] = []
    # Another thread may receive the signal, so blocking it in this thread does not postpone the handler.
    handler = signal.getsignal(signal.SIGINT)
    is_postponed = callable(handler) and threading.current_thread() is threading.main_thread()
    if is_postponed:
        signal.signal(signal.SIGINT, lambda number, _: postponed_signals.append(number))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if is_postponed:
            signal.signal(signal.SIGINT, handler)
        if postponed_signals:
            signal.raise_signal(signal.SIGINT)


def leave_interruptions_to_parent() -> None:
    """Ignore and unblock SIGINT in this process, because its parent handles Ctrl-C and terminates it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def end_with_parent() -> None:
    """Start a thread that sends this process SIGTERM when its parent ends, and exits it five seconds later.

    The parent must have started it with `multiprocessing`.
    """
    threading.Thread(target=_wait_for_end_of_parent, daemon=True).start()


def parent_has_ended() -> bool:
    """Return whether the parent has ended, waiting up to two seconds for the notification; False without a parent.

    Call it after a lost connection to the parent.
    """
    parent = multiprocessing.parent_process()
    return parent is not None and bool(multiprocessing.connection.wait([parent.sentinel], _NOTICE_SECONDS))


def _wait_for_end_of_parent() -> None:
    """Wait until the parent process ends, then end this process: by SIGTERM, and after `_CLEANUP_SECONDS` by force."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        # The main thread may be waiting for something, so send it a signal.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        time.sleep(_CLEANUP_SECONDS)
        os._exit(1)
