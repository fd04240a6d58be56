"""Tensors that live in files: memory-mapped for whoever uses them whole, read and written slab by slab otherwise."""

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from io import FileIO
from math import prod
from pathlib import Path
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

# A file that is written in larger pieces is cached in larger units, and then writing a few columns of every row takes
# several times as long, as does the first write; smaller pieces make more calls.
_PIECE = 16 * 2**10


class MappedFile(mmap.mmap):
    """A file that has no name and lasts as long as the storage of the tensor that it was mapped for.

    Slabs are read and written as parts of the file rather than copied from and to its mapping: pages that are touched
    there count as the process's memory, in units of up to 2 MiB, and cost a fault each.
    """

    file: FileIO
    blank: bool  # Nothing has been written yet, so nothing need be read.
    crosses = False  # Slabs stay on the CPU.

    def fetch(self, slab: Tensor, room: Tensor) -> None:
        """Copy a slab of the tensor, its dims in the order of memory, into dense memory."""
        memory, done = _bytes(room), 0
        for start, length in _segments(slab):
            self.file.seek(start)
            _all(self.file.readinto, memory[done : done + length])
            done += length

    def store(self, slab: Tensor, room: Tensor) -> None:
        """Copy dense memory into a slab of the tensor, its dims in the order of memory."""
        self.blank = False
        memory, done = _bytes(room), 0
        for start, length in _segments(slab):
            self.file.seek(start)
            for piece in range(done, done + length, _PIECE):
                _all(self.file.write, memory[piece : min(piece + _PIECE, done + length)])
            done += length

    def release(self) -> None:
        """Give back the memory of pages that were touched in the mapping; what they hold is in the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.madvise(mmap.MADV_DONTNEED)


def mapped_tensor(directory: Path, shape: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, MappedFile]:
    """A tensor of zeros in a new file in `directory`; the file is gone with the tensor, however the process ends.

    Raises OSError, which says what is needed and what is free, where there is no room: at once and not when the
    tensor is written.
    """
    size = prod(shape) * dtype.itemsize
    with ExitStack() as undone:
        file = undone.enter_context(tempfile.TemporaryFile(dir=directory, buffering=0))
        free = shutil.disk_usage(directory).free
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        except OSError as error:
            needed, there = (f"{each / 2**30:.2f} GiB" for each in (size, free))
            reason = f"a stream of {needed} ({size} bytes) cannot be spilled to {directory}, where {there} are free"
            raise OSError(error.errno, reason) from error
        mapping = MappedFile(file.fileno(), size)
        undone.pop_all()
    mapping.file, mapping.blank = file, True
    finalize(mapping, file.close)
    return torch.frombuffer(mapping, dtype=dtype).view(*shape), mapping


def _segments(slab: Tensor) -> Iterator[tuple[int, int]]:
    """Where in the file the slab's bytes are: starts and lengths of stretches without a gap."""
    outer, length = slab.ndim, 1
    while outer and slab.stride(outer - 1) == length:
        outer -= 1
        length *= slab.shape[outer]
    starts = np.array(slab.storage_offset())
    for size, stride in zip(slab.shape[:outer], slab.stride()[:outer], strict=True):
        starts = np.add.outer(starts, np.arange(size) * stride)
    for start in starts.flatten().tolist():
        yield start * slab.element_size(), length * slab.element_size()


def _bytes(dense: Tensor) -> memoryview:
    return dense.flatten().view(torch.uint8).numpy().data


def _all(transfer: Callable[[memoryview], int | None], memory: memoryview) -> None:
    """Repeat a transfer until all is done: the system may do a part of a large one."""
    while memory:
        done = transfer(memory)
        if not done:
            raise OSError("a spilled stream's file has become shorter")
        memory = memory[done:]
