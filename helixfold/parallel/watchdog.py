"""Detect ranks that hang or died, so that the others end with an error that names them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from data_pipeline.io.errors import printable

# Time that the remaining ranks wait for each other's reports. A rank that waits for a dead rank notices at once. A rank
# that waits for a live rank notices at its own timeout, which is awaited only if it is at most `_SHORT_TIMEOUT`.
_GRACE_SECONDS, _SHORT_TIMEOUT = 5.0, 30.0  # seconds
# Parts of the messages of gloo's errors, which do not have their own type.
_GLOO_MESSAGES = ("gloo", "Connection closed by peer", "Connection reset by peer", "Timed out waiting")


class LostRankError(RuntimeError):
    """A rank did not answer or has ended.

    `text` is the message. `should_report` is true on only one of the remaining ranks, which prints the message.
    """

    def __init__(self, text: str, *, should_report: bool) -> None:
        super().__init__(text)
        self.should_report = should_report


@contextmanager
def report_lost_ranks(timeout: float) -> Iterator[None]:
    """Context that converts a failed rendezvous or collective to a `LostRankError` that names the missing ranks.

    `timeout` is the timeout of collectives in seconds. Other errors are not changed. The remaining ranks wait for each
    other's reports, for at most 35 seconds.
    """
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        if not (isinstance(error, dist.DistError) or any(word in message for word in _GLOO_MESSAGES)):
            raise
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 0)
        remaining_ranks = _remaining_ranks(rank, size, _GRACE_SECONDS + min(timeout, _SHORT_TIMEOUT))
        missing = [str(rank) for rank in range(size) if rank not in remaining_ranks]
        if missing:
            which = f"{'ranks' if len(missing) > 1 else 'rank'} {', '.join(missing)} of {size}"
            text = f"{which} did not answer for {timeout:g} s, or ended"
        else:
            text = f"ranks {'lost each other' if size else 'did not meet'} ({printable(message.splitlines()[0])})"
        text += "; run the same command again to resume from the last checkpoint, or use torchrun --max-restarts"
        raise LostRankError(text, should_report=rank == min(remaining_ranks)) from error


def _remaining_ranks(rank: int, size: int, seconds: float) -> set[int]:
    """Return the ranks that report to the rendezvous store within `seconds`."""
    if not size:
        return {rank}
    store = _get_default_store()
    deadline = time.monotonic() + seconds
    reported = {rank}
    with suppress(RuntimeError):  # the first rank, which serves the store, has ended
        store.set(f"left/{rank}", "")
        while time.monotonic() < deadline and len(reported) < size:
            reported |= {other for other in range(size) if other not in reported and store.check([f"left/{other}"])}
            time.sleep(0.1)
    return reported
