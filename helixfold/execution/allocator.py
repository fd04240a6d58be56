"""Settings of glibc's memory allocator: keep freed memory for later tensors, or return it to the system.

By default glibc maps each tensor above 32 MiB separately, and the system clears its pages on the first write, which
takes longer than many operators. Commands change this once, for the whole process; importing this module changes
nothing. Other C libraries do not have these settings.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

_PARAMETERS = {"trim_threshold": -1, "top_pad": -2, "mmap_threshold": -3, "mmap_max": -4}  # of malloc.h
# glibc raises its thresholds as large blocks are freed, until a program sets one. These are the highest values.
_DEFAULT_SETTINGS = {
    "trim_threshold": 64 * 2**20,
    "top_pad": 128 * 2**10,
    "mmap_threshold": 32 * 2**20,
    "mmap_max": 65536,
}
# Freed memory stays in the heap, which is never trimmed. The largest blocks are still mapped separately, because a
# freed block of the heap serves a new block of its size only after it has been joined with a neighbour.
_KEEP_SETTINGS = {"trim_threshold": -1, "mmap_max": 65536}
# Everything above 64 KiB is mapped separately and unmapped when it is freed: the process is as large as its tensors.
_RETURN_SETTINGS = {"trim_threshold": 2**16, "top_pad": 0, "mmap_threshold": 2**16, "mmap_max": 2**20}

# Bytes, glibc's mmap_threshold for the executors `Whole` and `Slabs`: freed blocks of up to this size stay in the
# process. `Whole` allocates and frees tensors of a stream's size all the time. With `Slabs` temporaries are small and
# the large blocks are streams, whose memory is returned.
WHOLE_MMAP_THRESHOLD, SLABS_MMAP_THRESHOLD = 512 * 2**20, 32 * 2**20
# glibc's top_pad: bytes by which a heap grows beyond a request. A block that fits into them is never mapped separately.
TOP_PAD = 64 * 2**20

# Environment variables for the sizes of PyTorch's cache of oneDNN kernels and of oneDNN's own cache. 48 is a little
# more than a block of the network needs. With a smaller cache every block prepares its kernels again: with 16, an
# iteration of the demonstration model over 76 residues took a third longer than with 48.
_KERNEL_CACHES, _KERNELS = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"), 48

# Nested settings; the last one is in force. malloc has one setting for all threads.
_settings: list[dict[str, int]] = [_DEFAULT_SETTINGS]


def unsupported_reason() -> str | None:
    """Return why the allocator of this process cannot be configured; None if it can."""
    if sys.platform != "linux":
        return f"{sys.platform} has no glibc"
    process = ctypes.CDLL(None)
    if not hasattr(process, "gnu_get_libc_version"):
        return "the C library is not glibc"
    glibc = ctypes.CDLL("libc.so.6")
    if _address(process.malloc) != _address(glibc.malloc):
        return "another allocator has been loaded before glibc's"
    return None


def keeping_freed_memory(
    mmap_threshold: int = WHOLE_MMAP_THRESHOLD, top_pad: int = TOP_PAD
) -> AbstractContextManager[None]:
    """Return a context inside which freed memory stays in the process for later tensors.

    Blocks of more than `mmap_threshold` bytes are returned to the system at once, unless they fit into the `top_pad`
    bytes by which every thread's heap grows. When the context ends, the memory is returned and the earlier setting
    restored. Nothing happens if `unsupported_reason` returns a reason.
    """
    return _set({**_KEEP_SETTINGS, "mmap_threshold": mmap_threshold, "top_pad": top_pad})


def keep_freed_memory() -> None:
    """Keep freed memory in the process until it ends, for the workers of a data loader.

    Nothing happens if `unsupported_reason` returns a reason.
    """
    _settings.append({**_KEEP_SETTINGS, "mmap_threshold": WHOLE_MMAP_THRESHOLD, "top_pad": TOP_PAD})
    _apply_last()


def returning_freed_memory() -> AbstractContextManager[None]:
    """Return a context inside which freed memory goes back to the system at once.

    The size of the process is then the size of its tensors, so that it can be measured.
    """
    return _set(_RETURN_SETTINGS)


def return_free_memory() -> None:
    """Return the freed memory of the process to the system, without changing the settings; only with glibc."""
    if unsupported_reason() is None:
        ctypes.CDLL(None).malloc_trim(0)


def keep_few_kernels() -> None:
    """Limit oneDNN's caches to 48 prepared matrix products instead of 1,024; each takes 0.5 MiB.

    This sets environment variables, unless they are set. Call it before the first matrix product of the process. The
    network has few shapes while it folds one chain. oneDNN reads the limit from environment variables only.
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
    """Apply the innermost settings, if the allocator supports them."""
    if unsupported_reason() is not None:
        return
    library, setting = ctypes.CDLL(None), _settings[-1]
    accepted = {name: library.mallopt(_PARAMETERS[name], value) for name, value in setting.items()}
    if not accepted["mmap_threshold"]:
        # Some versions of glibc allow at most 32 MiB; no block is mapped separately there.
        library.mallopt(_PARAMETERS["mmap_max"], 0)
    library.malloc_trim(0)


def _address(function: object) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
