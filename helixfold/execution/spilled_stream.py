"""Streams whose memory is not the computing device's: buffers in files, or beside a GPU in the host's memory."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from helixfold.execution.mapped import MappedFile

# By element size, for types that NumPy does not know.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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


def _array(tensor: Tensor) -> "np.ndarray":
    return tensor.view(_INTEGERS[tensor.element_size()]).numpy()
