"""Division of work into blocks that fit the cache of the processor."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from math import prod
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from helixfold.ops.device_properties import is_simulated

T = TypeVar("T")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def l2_cache_bytes() -> int:
    """Return the bytes of a core's level 2 cache, at most 2 MiB; 512 KiB if they are unknown or fewer.

    Virtual machines may report more than the processor has, and some processors share this cache.
    """
    kibibytes = 512
    with suppress(OSError, ValueError):
        for cache in _CACHES.glob("index*"):
            if (cache / "level").read_text() == "2\n":
                kibibytes = int((cache / "size").read_text().strip().removesuffix("K"))
    return 2**10 * min(max(kibibytes, 512), 2048)


def for_all_cores(per_core: int) -> int:
    """Return the size of a block that all threads compute together: `per_core` times the number of threads."""
    return per_core * torch.get_num_threads()


def slices(length: int, size: int) -> Iterator[slice]:
    """Yield slices of about equal length, at most `size` (or 1) long, that cover 0 to `length`, the longest first.

    Buffers for the first slice (`Scratch`) therefore fit all others. Inside `simulated_device`, yield only the
    longest slice, twice. The results of the first still exist while the second is computed, and all further slices
    would allocate the same memory.
    """
    if is_simulated():
        count = -(-length // max(size, 1))
        yield from [slice(0, -(-length // max(count, 1)))] * min(count, 2)
    else:
        yield from all_slices(length, size)


def all_slices(length: int, size: int) -> Iterator[slice]:
    """Yield all slices, also inside `simulated_device`, for loops that hold the results of all slices until the end."""
    count = -(-length // max(size, 1))
    for index in range(count):
        yield slice(-(-length * index // count), -(-length * (index + 1) // count))


def steps(blocks: Iterable[T]) -> Iterator[T]:
    """Yield the blocks; inside `simulated_device`, only the first two, as in `slices`."""
    return islice(blocks, 2 if is_simulated() else None)


def row_blocks(x: Tensor, weight: Tensor, per_core: int) -> Iterator[tuple[int, slice]]:
    """Yield (sample, rows) of blocks of `x` [b n k c] whose products with `weight` take at most `per_core` bytes.

    The limit is per core. A block has at least one row.
    """
    b, n, k, _ = x.shape
    for sample in steps(range(b)):
        for rows in slices(n, for_all_cores(per_core) // (len(weight) * k * weight.element_size())):
            yield sample, rows


class Scratch:
    """Named buffers for temporaries that all blocks reuse, because new memory is slow: it is mapped page by page."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a contiguous uninitialised tensor in the buffer `name`, which must always have the same dtype."""
        size, buffer = prod(shape), self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[name] = torch.empty(size, dtype=dtype, device=self._device)
        return buffer[:size].view(shape)
