"""Decide what becomes of memory that tensors leave on a CPU: kept for the next ones, or given back to the system.

By default the C library maps every tensor above 32 MiB anew and lets the system clear it page by page when it is
first written, which takes longer than many an operator. Commands choose otherwise once, for the whole process; nothing
here is done on import. Only glibc can be told.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

_PARAMETERS = {"trim_threshold": -1, "top_pad": -2, "mmap_threshold": -3, "mmap_max": -4}  # of malloc.h
# glibc raises its thresholds as large blocks are freed, until it is told any; this is where it would have ended.
_USUAL = {"trim_threshold": 64 * 2**20, "top_pad": 128 * 2**10, "mmap_threshold": 32 * 2**20, "mmap_max": 65536}
# What is kept comes from the heap, of which nothing is trimmed. The largest are still mapped alone: a freed block of
# the heap serves a new one of its size only after it has been joined with a neighbour, and so some memory lies idle.
_KEPT = {"trim_threshold": -1, "mmap_max": 65536}
# Everything above 64 KiB is mapped alone and unmapped when it is freed: the process holds what tensors hold.
_RETURNED = {"trim_threshold": 2**16, "top_pad": 0, "mmap_threshold": 2**16, "mmap_max": 2**20}

# Up to what size freed blocks are kept. Whole updates make and leave tensors of a stream's size all the time. Slabs do
# not: their temporaries are small, and large blocks are streams, which are to leave nothing behind.
OF_WHOLE, OF_SLABS = 512 * 2**20, 32 * 2**20
# By how much more than is asked for heaps grow. A block that fits into that is not mapped alone, however large.
AHEAD = 64 * 2**20

# PyTorch's cache of oneDNN's kernels and oneDNN's own, and how many of them a block needs at a time.
_KERNEL_CACHES, _KERNELS = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"), 16

# What holds now, innermost last; malloc has one setting for all threads.
_settings: list[dict[str, int]] = [_USUAL]


def refusal() -> str | None:
    """Return why this process's allocator is left as it is; None if it can be told."""
    if sys.platform != "linux":
        return f"{sys.platform} has no glibc"
    process = ctypes.CDLL(None)
    if not hasattr(process, "gnu_get_libc_version"):
        return "the C library is not glibc"
    glibc = ctypes.CDLL("libc.so.6")
    if _address(process.malloc) != _address(glibc.malloc):
        return "another allocator has been loaded before glibc's"
    return None


def freed_memory_kept(largest: int = OF_WHOLE, ahead: int = AHEAD) -> AbstractContextManager[None]:
    """Keep freed memory mapped for later tensors, but give blocks of more than `largest` bytes back at once, unless
    they fit into the `ahead` bytes by which every thread's heap grows; where the allocator cannot be told, do nothing.

    Afterwards what was kept is given back and the setting from before holds again.
    """
    return _set({**_KEPT, "mmap_threshold": largest, "top_pad": ahead})


def keep_freed_memory() -> None:
    """Keep freed memory in the same way for as long as this process lives, such as a loader's worker."""
    _settings.append({**_KEPT, "mmap_threshold": OF_WHOLE, "top_pad": AHEAD})
    _apply_last()


def freed_memory_returned() -> AbstractContextManager[None]:
    """Give freed memory back at once, so that the process's size is that of its tensors; for measuring it."""
    return _set(_RETURNED)


def give_back() -> None:
    """Give memory that is free now back to the system, whatever holds for later."""
    if refusal() is None:
        ctypes.CDLL(None).malloc_trim(0)


def keep_few_kernels() -> None:
    """Let oneDNN keep what it has prepared for a product for a few shapes only, not for 1,024: half a MiB for each.

    Before the first product of the process; slabs of one chain have few shapes. There is no other way to say it.
    """
    for name in _KERNEL_CACHES:
        os.environ.setdefault(name, str(_KERNELS))


@contextmanager
def _set(setting: dict[str, int]) -> Iterator[None]:
    _settings.append(setting)
    _apply_last()
    try:
        yield
    finally:
        _settings.pop()
        _apply_last()


def _apply_last() -> None:
    """Tell the allocator the last of the settings, if it can be told."""
    if refusal() is not None:
        return
    library, setting = ctypes.CDLL(None), _settings[-1]
    accepted = {name: library.mallopt(_PARAMETERS[name], value) for name, value in setting.items()}
    if not accepted["mmap_threshold"]:
        # Some versions allow 32 MiB at most: then no block is mapped alone.
        library.mallopt(_PARAMETERS["mmap_max"], 0)
    library.malloc_trim(0)


def _address(function: object) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
