"""A rank that hangs or has ended: the others find out which one it is, and end with its name."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from data_pipeline.errors import printable

# How long those that are left wait for each other. Who waits for a rank that has ended notices at once; who waits for
# one that has noticed does so when its own timeout ends, which is waited for if it is this short.
_GRACE, _SHORT_TIMEOUT = 5.0, 30.0  # seconds
# Of gloo, whose errors have no type of their own.
_WORDS = ("gloo", "Connection closed by peer", "Connection reset by peer", "Timed out waiting")


class LostRankError(RuntimeError):
    """Some rank did not answer. `should_report` is so on one of those that are left."""

    def __init__(self, text: str, *, should_report: bool) -> None:
        super().__init__(text)
        self.should_report = should_report


@contextmanager
def report_lost_ranks(timeout: float) -> Iterator[None]:
    """Turn a failed meeting or exchange into `LostRankError`, with those that did not answer for so many seconds."""
    try:
        yield
    except RuntimeError as error:
        why = str(error)
        if not (isinstance(error, dist.DistError) or any(word in why for word in _WORDS)):
            raise
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 0)
        left = _ranks_left(rank, size, _GRACE + min(timeout, _SHORT_TIMEOUT))
        missing = [str(rank) for rank in range(size) if rank not in left]
        if missing:
            which = f"{'ranks' if len(missing) > 1 else 'rank'} {', '.join(missing)} of {size}"
            text = f"{which} did not answer for {timeout:g} s, or ended"
        else:
            text = f"ranks {'lost each other' if size else 'did not meet'} ({printable(why.splitlines()[0])})"
        text += "; the same command goes on from the last checkpoint, and torchrun --max-restarts gives it by itself"
        raise LostRankError(text, should_report=rank == min(left)) from error


def _ranks_left(rank: int, size: int, seconds: float) -> set[int]:
    """Those that notice within this time, too: each says so where all ranks met."""
    if not size:
        return {rank}
    store = _get_default_store()
    deadline = time.monotonic() + seconds
    left = {rank}
    try:
        store.set(f"left/{rank}", "")
        while time.monotonic() < deadline and len(left) < size:
            left |= {other for other in range(size) if other not in left and store.check([f"left/{other}"])}
            time.sleep(0.1)
    except RuntimeError:  # the first rank kept the meeting place
        pass
    return left
