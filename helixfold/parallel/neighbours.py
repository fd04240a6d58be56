"""Processes that keep processors busy, for measuring speed as on a shared machine."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Semaphore

from data_pipeline.io.child_processes import end_with_parent, interruptions_postponed, leave_interruptions_to_parent

_MATRIX_SIZE = 192  # rows and columns of the matrices that a process multiplies
_SECONDS_TO_START = 60


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Context in which `count` processes compute without a pause, each in one thread.

    It begins when all of them compute, and ends them at its end. Raise `RuntimeError` if a process does not start
    within 60 seconds.
    """
    context = multiprocessing.get_context("spawn")
    started = context.Semaphore(0)
    neighbours = [context.Process(target=_compute, args=(started,), daemon=True) for _ in range(count)]
    try:
        with interruptions_postponed():
            for each in neighbours:
                each.start()
        for _ in neighbours:
            if not started.acquire(timeout=_SECONDS_TO_START):
                raise RuntimeError(f"a process for background load did not start within {_SECONDS_TO_START} seconds")
        yield
    finally:
        for each in neighbours:
            each.kill()
            each.join()


def _compute(started: Semaphore) -> None:
    """Release `started`, and then multiply matrices until the process is killed."""
    leave_interruptions_to_parent()
    end_with_parent()
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    matrix = torch.ones(_MATRIX_SIZE, _MATRIX_SIZE)
    started.release()
    while True:
        matrix @ matrix
