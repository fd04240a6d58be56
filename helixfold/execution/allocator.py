"""Settings of the C library's allocator: whether freed memory is kept for later tensors or returned to the system.

By default the C library maps every tensor above 32 MiB anew and lets the system clear it page by page when it is
first written, which takes longer than many operators. Commands change this once, for the whole process; importing
this module changes nothing. The settings exist in glibc only.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

_PARAMETERS = {"trim_threshold": -1, "top_pad": -2, "mmap_threshold": -3, "mmap_max": -4}  # of malloc.h
# glibc raises its thresholds as large blocks are freed, until a program sets one; these are the highest it reaches.
_USUAL = {"trim_threshold": 64 * 2**20, "top_pad": 128 * 2**10, "mmap_threshold": 32 * 2**20, "mmap_max": 65536}
# Kept memory is in the heap, which is never trimmed. The largest blocks are still mapped alone: a freed block of the
# heap serves a new one of its size only after it has been joined with a neighbour, so some memory stays unused.
_KEPT = {"trim_threshold": -1, "mmap_max": 65536}
# Everything above 64 KiB is mapped alone and unmapped when it is freed: the process holds what tensors hold.
_RETURNED = {"trim_threshold": 2**16, "top_pad": 0, "mmap_threshold": 2**16, "mmap_max": 2**20}

# Largest freed blocks that are kept, in bytes, for the executors `Whole` and `Slabs`. Whole updates allocate and free
# tensors of a stream's size all the time. The temporaries of slabs are small: their large blocks are streams, whose
# memory is returned.
OF_WHOLE, OF_SLABS = 512 * 2**20, 32 * 2**20
# Bytes by which a heap grows beyond a request. A block that fits into them is not mapped alone, however large.
AHEAD = 64 * 2**20

# Variables that set the size of PyTorch's cache of oneDNN's kernels and of oneDNN's own, and the number of kernels that
# a block of the network needs at a time with room to spare. With fewer than it needs, all are made again in every
# block: with 16, a pass of the demonstration model over 76 residues took a third longer than with 48.
_KERNEL_CACHES, _KERNELS = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"), 48

# Nested settings, of which the last is in force; malloc has one setting for all threads.
_settings: list[dict[str, int]] = [_USUAL]


def refusal() -> str | None:
    """Return the reason why the settings of this process's allocator cannot be changed, or None if they can."""
    if sys.platform != "linux":
        return f"{sys.platform} has no glibc"
    process = ctypes.CDLL(None)
    if not hasattr(process, "gnu_get_libc_version"):
        return "the C library is not glibc"
    glibc = ctypes.CDLL("libc.so.6")
    if _address(process.malloc) != _address(glibc.malloc):
        return "another allocator has been loaded before glibc's"
    return None


def keeping_freed_memory(largest: int = OF_WHOLE, ahead: int = AHEAD) -> AbstractContextManager[None]:
    """Return a context inside which freed memory stays in the process for later tensors.

    Blocks of more than `largest` bytes are returned to the system at once, unless they fit into the `ahead` bytes by
    which every thread's heap grows. When the context ends, kept memory is returned and the earlier setting restored.
    Nothing happens if `refusal` gives a reason.
    """
    return _set({**_KEPT, "mmap_threshold": largest, "top_pad": ahead})


def keep_freed_memory() -> None:
    """Keep freed memory as `keeping_freed_memory` does, until the process ends; for a data loader's workers."""
    _settings.append({**_KEPT, "mmap_threshold": OF_WHOLE, "top_pad": AHEAD})
    _apply_last()


def returning_freed_memory() -> AbstractContextManager[None]:
    """Return a context inside which freed memory goes back to the system at once.

    The size of the process is then that of its tensors, so that it can be measured.
    """
    return _set(_RETURNED)


def return_free_memory() -> None:
    """Return memory that is free now to the system; settings for memory that is freed later stay as they are."""
    if refusal() is None:
        ctypes.CDLL(None).malloc_trim(0)


def keep_few_kernels() -> None:
    """Limit oneDNN's caches to 48 prepared matrix products instead of 1,024; each takes half a MiB.

    Call this before the first product of the process. Passes of one chain have few shapes. oneDNN reads the limit from
    environment variables only.
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
    """Apply the last of the nested settings, if the allocator has them."""
    if refusal() is not None:
        return
    library, setting = ctypes.CDLL(None), _settings[-1]
    accepted = {name: library.mallopt(_PARAMETERS[name], value) for name, value in setting.items()}
    if not accepted["mmap_threshold"]:
        # Some versions of glibc allow 32 MiB at most; no block is mapped alone there.
        library.mallopt(_PARAMETERS["mmap_max"], 0)
    library.malloc_trim(0)


def _address(function: object) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
