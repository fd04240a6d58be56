"""Sizes of streams above and below which operators use other backends on a CPU.

If gradients are needed, plain PyTorch computes small streams. Small tensors stay in the cache of the processor and
calls cost more than memory, so plain PyTorch is faster than operators that recompute intermediate results. On one core
with 64 channels and 64 or 128 residues, it takes half to four fifths of the time of most operators for the forward and
backward pass, and saves up to three times the memory.

Loops compiled by Numba, if it is installed, compute large streams. The first loop of a process costs 0.45 s, and more
if it is not in the cache of compiled loops, which smaller streams would not win back.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, is_grad_enabled

# Maximum elements of a small stream, and of the largest tensor that plain PyTorch saves for its gradients.
SMALL_STREAM = 2**20
MAX_SAVED_ELEMENTS = 2**23
# Minimum elements of a large stream; with None, no stream is large.
LARGE_STREAM: int | None = 2**21
_thread = threading.local()


def plain_is_faster(stream: Tensor, *_: object, saved: int = 0, **__: object) -> str | None:
    """Return why plain PyTorch is faster, if the stream is small and needs gradients, or None.

    A stream is small up to `SMALL_STREAM` elements, if `saved` is at most `MAX_SAVED_ELEMENTS`. `saved` is the number
    of elements of the largest tensor that plain PyTorch saves, if larger than the stream.
    """
    if stream.numel() <= SMALL_STREAM and saved <= MAX_SAVED_ELEMENTS and stream.requires_grad and is_grad_enabled():
        return f"plain PyTorch is faster with gradients of up to {SMALL_STREAM} elements on a CPU"
    return None


@contextmanager
def loops_if_large(*elements: int) -> Iterator[None]:
    """Enable compiled loops in this thread inside, if the maximum of `elements` is at least `LARGE_STREAM`.

    They stay enabled in nested calls, so that all blocks of a large stream are computed in the same way.
    """
    earlier = loops_may_compute()
    _thread.may_compute = earlier or (LARGE_STREAM is not None and max(elements, default=0) >= LARGE_STREAM)
    try:
        yield
    finally:
        _thread.may_compute = earlier


def loops_may_compute() -> bool:
    """Return whether this thread is computing a large stream, which enables compiled loops."""
    return getattr(_thread, "may_compute", False)
