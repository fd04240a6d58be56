"""Create executors by name, and manage a process's memory for them."""

import gc
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from helixfold.execution import allocator
from helixfold.execution.available import available_memory, limit_memory
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.whole import Whole

# Names of the executors, from the one that needs the most memory to the one that needs the least.
EXECUTORS = ("whole", "slabs", "spilled")
# Peaks below this number of bytes do not need a full garbage collection first.
_SMALL_PEAK_BYTES = 2**28


def executor(
    name: str, directory: Path, device: torch.device | str = "cpu", slab_budget: int | None = None
) -> Whole | Slabs:
    """Return a new executor: "whole", "slabs" or "spilled".

    On a CPU, "spilled" writes streams to files in `directory`, which the other executors do not use. `slab_budget` is
    the maximum bytes of a slab's temporaries; by default they are a small share of the stream.
    """
    if name == "spilled":
        return Spilled(directory, slab_budget, device=device)
    return Slabs(slab_budget) if name == "slabs" else Whole()


def memory_kept(name: str, ranks: int = 1) -> AbstractContextManager[None]:
    """Return a context that sets how much freed memory the CPU allocator keeps for an executor (see `allocator`).

    `name` is the executor's. `ranks` is the number of ranks that share a sample.
    """
    if name == "whole":
        return allocator.keeping_freed_memory(allocator.WHOLE_MMAP_THRESHOLD)
    # If ranks share a sample, streams and slabs are smaller on each of them, so unused memory is a larger share.
    return allocator.keeping_freed_memory(allocator.SLABS_MMAP_THRESHOLD // ranks**2, allocator.TOP_PAD // ranks**2)


def bounded_memory(device: torch.device, memory: int) -> AbstractContextManager[None]:
    """Return a context that limits this process's memory on a CPU to `memory` bytes, or to the free memory if more.

    Nothing is limited on a GPU, whose allocator raises an error when memory is used up.
    """
    return limit_memory(max(memory, available_memory(device))) if device.type == "cpu" else nullcontext()


def release(device: torch.device, *, peak: int | None = None) -> None:
    """Collect garbage, and return all unused memory, on the device and on the host, to the system.

    `peak` is the estimated peak memory, in bytes, of the computation that follows. If it is small, old objects are not
    collected, because that takes a tenth of the time of folding a peptide.
    """
    gc.collect(1 if peak is not None and peak < _SMALL_PEAK_BYTES else 2)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    allocator.return_free_memory()
