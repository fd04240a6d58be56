"""Streams whose memory is not the computing device's: in files, or beside a GPU in the host's memory."""

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

# A file that is written in larger pieces is cached in larger units, and then writing a few columns of every row takes
# several times as long, as does the first write; smaller pieces make more calls.
_PIECE = 16 * 2**10
# By element size, for types that NumPy does not know.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class MappedFile(mmap.mmap):
    """A file that has no name and lasts as long as the storage of the tensor that it was mapped for.

    The tensor is memory-mapped for whoever uses it whole. Slabs are read and written as parts of the file rather than
    copied from and to its mapping: pages that are touched there count as the process's memory, in units of up to 2 MiB,
    and cost a fault each.
    """

    file: FileIO
    blank: bool  # Nothing has been written yet, so nothing need be read.
    crosses = False  # Slabs stay on the CPU.

    def fetch(self, slab: Tensor, room: Tensor) -> None:
        """Copy a slab of the tensor, its dims in the order of memory, into dense memory."""
        for start, memory in _stretches(slab, room):
            self.file.seek(start)
            _all(self.file.readinto, memory)

    def store(self, slab: Tensor, room: Tensor) -> None:
        """Copy dense memory into a slab of the tensor, its dims in the order of memory."""
        self.blank = False
        for start, memory in _stretches(slab, room):
            self.file.seek(start)
            for piece in range(0, len(memory), _PIECE):
                _all(self.file.write, memory[piece : piece + _PIECE])

    def release(self) -> None:
        """Give back the memory of pages that were touched in the mapping; what they hold is in the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.madvise(mmap.MADV_DONTNEED)


def mapped_tensor(directory: Path, shape: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, MappedFile]:
    """Return a tensor of zeros in a new file in `directory`, which is gone with the tensor, however the process ends.

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


class HostMemory:
    """The home of streams beside a device that computes. Copies leave torch's threads to those who compute.

    As in a file, slabs come with their dims in the order of memory, and `room` is dense. `crosses` says whether slabs
    go to another device.
    """

    blank = False

    def __init__(self, *, crosses: bool = True) -> None:
        self.crosses = crosses

    def fetch(self, slab: Tensor, room: Tensor) -> None:
        """Copy a slab into dense memory."""
        np.copyto(_array(room), _array(slab))

    def store(self, slab: Tensor, room: Tensor) -> None:
        """Copy dense memory into a slab."""
        np.copyto(_array(slab), _array(room))

    def release(self) -> None:
        """Do nothing: all of the host's memory is its own."""


Home = MappedFile | HostMemory


class SpilledStream:
    """A stream of which `home` owns the memory, and `device` computes with slabs: a `Stream`.

    `tensor` is all of it, on the CPU, in the memory that the home owns. Parts of it are made as of a tensor, and share
    that memory.
    """

    def __init__(self, tensor: Tensor, home: Home, device: torch.device) -> None:
        self.tensor, self.home, self.device = tensor, home, device

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def detach(self) -> "SpilledStream":
        return self

    def transpose(self, dim0: int, dim1: int, /) -> "SpilledStream":
        return SpilledStream(self.tensor.transpose(dim0, dim1), self.home, self.device)

    def __getitem__(self, index: Any) -> "SpilledStream":
        return SpilledStream(self.tensor[index], self.home, self.device)

    def gather(self) -> Tensor:
        """Return all of the stream as a tensor on the device that computes, which may share its memory."""
        return self.tensor.to(self.device)

    def copy_(self, values: Tensor) -> None:
        """Write all of the stream, at once and not slab by slab."""
        self.tensor.copy_(values)
        self.home.blank = False
        self.home.release()

    def same_rows(self, other: "SpilledStream") -> bool:
        """Return whether slabs of both are the same numbers."""
        mine, theirs = self.tensor, other.tensor
        return mine.untyped_storage()._cdata == theirs.untyped_storage()._cdata and (
            mine.storage_offset(),
            mine.shape,
            mine.stride(),
        ) == (theirs.storage_offset(), theirs.shape, theirs.stride())


def _stretches(slab: Tensor, room: Tensor) -> Iterator[tuple[int, memoryview]]:
    """Give the stretches of a file without a gap that hold a slab: where each starts, and its part of dense memory."""
    outer, length = slab.ndim, slab.element_size()
    while outer and slab.stride(outer - 1) * slab.element_size() == length:
        outer -= 1
        length *= slab.shape[outer]
    starts = np.array(slab.storage_offset())
    for size, stride in zip(slab.shape[:outer], slab.stride()[:outer], strict=True):
        starts = np.add.outer(starts, np.arange(size) * stride)
    memory = room.flatten().view(torch.uint8).numpy().data
    for number, start in enumerate(starts.flatten().tolist()):
        yield start * slab.element_size(), memory[number * length : (number + 1) * length]


def _all(transfer: Callable[[memoryview], int | None], memory: memoryview) -> None:
    """Repeat a transfer until all is done: the system may do a part of a large one."""
    while memory:
        done = transfer(memory)
        if not done:
            raise OSError("a spilled stream's file has become shorter")
        memory = memory[done:]


def _array(tensor: Tensor) -> "np.ndarray":
    return tensor.view(_INTEGERS[tensor.element_size()]).numpy()
