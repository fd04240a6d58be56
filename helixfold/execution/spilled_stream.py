"""Streams outside the memory of the computing device: in files, or in host memory next to a GPU.

A slab is a view of the whole tensor with its dims in the order of memory; its offset, shape and strides are its place.
`buffer` is a dense tensor of the slab's shape, on the computing device or the host.
"""

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

# Bytes of a write. The system caches a file in larger units if it is written in larger pieces. The first write, and
# later writes of a few columns of every row, then take several times as long. Smaller pieces need more calls.
_WRITE_SIZE = 16 * 2**10
# Integer types by element size, as substitutes for types that NumPy does not have (bfloat16).
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class MappedFile(mmap.mmap):
    """Unnamed file with the data of a spilled tensor, deleted with the tensor's storage.

    The whole tensor is memory-mapped. Slabs are read from and written to the file instead of the mapping: pages of the
    mapping that are touched count as the process's memory, in units of up to 2 MiB, and cost a page fault each.
    """

    file: FileIO
    blank: bool  # true until the first write; there is nothing to read
    crosses = False  # slabs stay on the CPU

    def fetch(self, slab: Tensor, buffer: Tensor) -> None:
        """Read a slab from its place in the file into `buffer`."""
        for start, memory in _contiguous_pieces(slab, buffer):
            self.file.seek(start)
            _transfer_all(self.file.readinto, memory)

    def store(self, slab: Tensor, buffer: Tensor) -> None:
        """Write `buffer` to the place of a slab in the file."""
        self.blank = False
        for start, memory in _contiguous_pieces(slab, buffer):
            self.file.seek(start)
            for piece in range(0, len(memory), _WRITE_SIZE):
                _transfer_all(self.file.write, memory[piece : piece + _WRITE_SIZE])

    def release(self) -> None:
        """Release the memory of touched pages of the mapping; their contents stay in the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.madvise(mmap.MADV_DONTNEED)


def mapped_tensor(directory: Path, shape: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, MappedFile]:
    """Return a tensor of zeros in a new unnamed file in `directory`, and the file.

    The file is deleted with the tensor, and also if the process is killed. Its space is reserved at once, so later
    writes do not fail. Raise OSError with the needed and the free bytes if the disk has too little space.
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
            needed, available = (f"{each / 2**30:.2f} GiB" for each in (size, free))
            need = f"a spilled stream needs {needed} ({size} bytes)"
            reason = f"too little space in {directory}: {need}, {available} are free"
            raise OSError(error.errno, reason) from error
        mapping = MappedFile(file.fileno(), size)
        undone.pop_all()
    mapping.file, mapping.blank = file, True
    finalize(mapping, file.close)
    return torch.frombuffer(mapping, dtype=dtype).view(*shape), mapping


class HostMemory:
    """Host memory with the data of a spilled stream. Copies use NumPy, so that PyTorch's threads can compute meanwhile.

    `crosses` is true if slabs are copied to another device. `blank` is always False: contents must be read.
    """

    blank = False

    def __init__(self, *, crosses: bool = True) -> None:
        self.crosses = crosses

    def fetch(self, slab: Tensor, buffer: Tensor) -> None:
        """Copy a slab of the stream into `buffer`."""
        np.copyto(_array(buffer), _array(slab))

    def store(self, slab: Tensor, buffer: Tensor) -> None:
        """Copy `buffer` into a slab of the stream."""
        np.copyto(_array(slab), _array(buffer))

    def release(self) -> None:
        """Do nothing: host memory has no pages to release."""


Home = MappedFile | HostMemory


class SpilledStream:
    """A `Stream` in the memory of `home`, a file or the host, whose slabs are computed on `device`.

    `tensor` is the whole stream on the CPU. Indexing and transposing return spilled streams that share its memory.
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
        """Return the whole stream as a tensor on the computing device, which shares the stream's memory on a CPU."""
        return self.tensor.to(self.device)

    def copy_(self, values: Tensor) -> None:
        """Overwrite the whole stream with `values` in one copy."""
        self.tensor.copy_(values)
        self.home.blank = False
        self.home.release()

    def same_rows(self, other: "SpilledStream") -> bool:
        """Return whether two streams are the same view of the same memory, so that their slabs are equal."""
        mine, theirs = self.tensor, other.tensor
        return mine.untyped_storage()._cdata == theirs.untyped_storage()._cdata and (
            mine.storage_offset(),
            mine.shape,
            mine.stride(),
        ) == (theirs.storage_offset(), theirs.shape, theirs.stride())


def _contiguous_pieces(slab: Tensor, buffer: Tensor) -> Iterator[tuple[int, memoryview]]:
    """Yield each contiguous piece of a slab in the file: its offset in bytes, and its part of `buffer`."""
    outer, length = slab.ndim, slab.element_size()
    while outer and slab.stride(outer - 1) * slab.element_size() == length:
        outer -= 1
        length *= slab.shape[outer]
    starts = np.array(slab.storage_offset())
    for size, stride in zip(slab.shape[:outer], slab.stride()[:outer], strict=True):
        starts = np.add.outer(starts, np.arange(size) * stride)
    memory = buffer.flatten().view(torch.uint8).numpy().data
    for index, start in enumerate(starts.flatten().tolist()):
        yield start * slab.element_size(), memory[index * length : (index + 1) * length]


def _transfer_all(transfer: Callable[[memoryview], int | None], memory: memoryview) -> None:
    """Repeat a read or write until all of `memory` is transferred; one call may transfer only a part."""
    while memory:
        count = transfer(memory)
        if not count:
            raise OSError("the file of a spilled stream has become shorter")
        memory = memory[count:]


def _array(tensor: Tensor) -> "np.ndarray":
    """Return a NumPy view of a tensor as integers of its element size."""
    return tensor.view(_INTEGERS[tensor.element_size()]).numpy()
