"""Streams of which every rank of a group has a part, cut along rows or columns."""

from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor

from helixfold.model.update import Stream, as_tensor
from helixfold.parallel.collectives import Channel, Pending


def padded(length: int, parts: int) -> int:
    """Return the length that can be cut into so many equal parts."""
    return -(-length // parts) * parts


def widened(tensor: Tensor, dim: int, length: int) -> Tensor:
    """Return the tensor with zeros after it up to a length."""
    missing = length - tensor.shape[dim]
    if not missing:
        return tensor
    return torch.nn.functional.pad(tensor, [0, 0] * (tensor.ndim - 1 - dim) + [0, missing])


class Shard:
    """A stream (b i j c), or what is made of one row by row (b i ...), that a group of ranks has in parts.

    `shape` is the whole's. The rank's own part is cut along dim 1 or 2; both dims of a part are longer than the whole's
    by what makes them divisible by the number of ranks, and what stands there never reaches anything real. The part is
    a stream of the executor that works on one rank: a tensor, or one that is spilled.
    """

    def __init__(self, channel: Channel, shape: torch.Size, local: Stream, cut: int, made_by: object = None) -> None:
        self.channel, self.shape, self.made_by = channel, shape, made_by
        self._local, self._cut = local, cut
        self._moving: tuple[int, Pending] | None = None
        self.asked = 0  # how often someone needed it along an axis

    @property
    def part(self) -> Stream:
        """This rank's part as it is now, whichever way it is cut."""
        return self._local

    @property
    def dtype(self) -> torch.dtype:
        return self._local.dtype

    @property
    def device(self) -> torch.device:
        return self._local.device

    @property
    def cut(self) -> int:
        """The dim that it is cut along, or will be when what is under way has arrived."""
        return self._cut if self._moving is None else self._moving[0]

    def detach(self) -> "Shard":
        return Shard(self.channel, self.shape, self.along(self.cut).detach(), self.cut)

    def transpose(self, dim0: int, dim1: int, /) -> "Shard":
        assert {dim0, dim1} == {1, 2}
        b, i, j, *rest = self.shape
        return Shard(self.channel, torch.Size((b, j, i, *rest)), self.along(self.cut).transpose(1, 2), 3 - self.cut)

    def become(self, local: Stream, cut: int) -> "Shard":
        """Return the same stream with another part, which whoever had it before has now: no one holds the old one."""
        self._local, self._cut = local, cut
        return self

    def start(self, cut: int) -> None:
        """Begin to cut it along another dim."""
        if self._moving is None and cut != self._cut:
            blocks = _blocks(as_tensor(self._local), cut, self.channel.group.size)
            self._moving = cut, self.channel.begin("all_to_all", blocks)

    def along(self, cut: int, exchanged: Callable[[Stream, int], Stream] | None = None) -> Stream:
        """Return this rank's part, cut along that dim, as it stays; `exchanged` is another way to get it there."""
        if self._moving is not None:
            self._cut, arriving = self._moving
            self._moving = None
            self._local = _joined(arriving.wait(), 3 - self._cut)
        if cut != self._cut and exchanged is not None:
            self._local, self._cut = exchanged(self._local, cut), cut
        elif cut != self._cut:
            self.start(cut)
            return self.along(cut)
        return self._local


def _blocks(local: Tensor, cut: int, size: int) -> Tensor:
    """Return, for each rank, what it needs to have the stream cut along another dim."""
    pattern = "b (n i) j ... -> n b i j ..." if cut == 1 else "b i (n j) ... -> n b i j ..."
    return rearrange(local, pattern, n=size)


def _joined(blocks: Tensor, dim: int) -> Tensor:
    return rearrange(blocks, "n b i j ... -> b (n i) j ..." if dim == 1 else "n b i j ... -> b i (n j) ...")
