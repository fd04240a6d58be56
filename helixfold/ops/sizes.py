"""Sizes of streams that decide how operators compute them on a CPU.

Small ones are left to plain PyTorch where gradients are computed, which trains faster than operators that recompute
what they do not keep: small tensors stay in the processor's cache, and calls cost more than memory. Measured on one
core with 64 channels, 64 and 128 residues, forward and backward: plain PyTorch takes half to four fifths of the time of
most operators, and keeps up to three times as much.

Large ones are computed by loops that Numba compiles, if it is installed. The first loop of a process costs 0.45 seconds
(and some more where none was compiled before), which smaller streams would not win back.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, is_grad_enabled

# Elements up to which a stream is small, and so is the largest tensor that plain PyTorch keeps for the gradients.
SMALL_STREAM = 2**20
KEPT = 2**23
# Elements from which on a stream is large; None for never.
LARGE_STREAM: int | None = 2**21
_thread = threading.local()


def plain_is_faster(stream: Tensor, *_: object, kept: int = 0, **__: object) -> str | None:
    """Return why plain PyTorch is faster if a small stream takes gradients, or None if it is not.

    `kept` is the number of elements of the largest tensor that plain PyTorch keeps, if that is not a stream.
    """
    if stream.numel() <= SMALL_STREAM and kept <= KEPT and stream.requires_grad and is_grad_enabled():
        return f"plain PyTorch is faster with gradients of up to {SMALL_STREAM} elements on a CPU"
    return None


@contextmanager
def loops_if_large(*elements: int) -> Iterator[None]:
    """Let loops compute inside if one of an operator's tensors has many elements, or the stream that it is a slab of.

    So all blocks of a stream are computed in the same way.
    """
    earlier = loops_may_compute()
    _thread.may_compute = earlier or (LARGE_STREAM is not None and max(elements, default=0) >= LARGE_STREAM)
    try:
        yield
    finally:
        _thread.may_compute = earlier


def loops_may_compute() -> bool:
    """Return whether this thread computes a large stream."""
    return getattr(_thread, "may_compute", False)
