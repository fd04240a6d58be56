"""Executors by their names, and the memory of a process that computes with one."""

import gc
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from helixfold.execution import allocator
from helixfold.execution.available import available_memory, limit_memory
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.whole import Whole

EXECUTORS = ("whole", "slabs", "spilled")
# A peak in bytes beside which it does not matter what a few objects hold.
_LITTLE = 2**28


def executor(
    name: str, directory: Path, device: torch.device | str = "cpu", slab_budget: int | None = None
) -> Whole | Slabs:
    """Return a new executor: "whole", "slabs" or "spilled", which on a CPU spills streams to files in `directory`.

    `slab_budget` is the bytes that temporaries of a slab may take; None is a small share of the stream.
    """
    if name == "spilled":
        return Spilled(directory, slab_budget, device=device)
    return Slabs(slab_budget) if name == "slabs" else Whole()


def memory_kept(name: str, ranks: int = 1) -> AbstractContextManager[None]:
    """Return a context in which a CPU's allocator keeps freed memory as it suits an executor (see `allocator`).

    `ranks` is the number of ranks that share a sample.
    """
    if name == "whole":
        return allocator.keeping_freed_memory(allocator.OF_WHOLE)
    # Each of several ranks has a smaller part of a stream, and smaller slabs of it: unused memory weighs more.
    return allocator.keeping_freed_memory(allocator.OF_SLABS // ranks**2, allocator.AHEAD // ranks**2)


def bounded_memory(device: torch.device, memory: int) -> AbstractContextManager[None]:
    """Return a context that limits a CPU's memory to `memory` bytes, or to what is free if that is more.

    A GPU's allocator fails by itself.
    """
    return limit_memory(max(memory, available_memory(device))) if device.type == "cpu" else nullcontext()


def release(device: torch.device, *, peak: int | None = None) -> None:
    """Return all memory that is no longer used, on the device and on the host, to the system.

    Before a computation that takes little, whose estimate is `peak`, old objects are not looked through: that takes a
    tenth of the time of folding a peptide.
    """
    gc.collect(1 if peak is not None and peak < _LITTLE else 2)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    allocator.return_free_memory()
