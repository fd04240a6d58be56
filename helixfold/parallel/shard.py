"""Streams that are sharded over the ranks of a group along rows or columns."""

from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor

from helixfold.model.update import Stream, as_tensor
from helixfold.parallel.collectives import Channel, Pending


def padded(length: int, parts: int) -> int:
    """Return the smallest multiple of `parts` that is at least `length`: the length after padding."""
    return -(-length // parts) * parts


def pad_to(tensor: Tensor, dim: int, length: int) -> Tensor:
    """Return the tensor padded at the end of a dimension with zeros up to a length."""
    missing = length - tensor.shape[dim]
    if not missing:
        return tensor
    return torch.nn.functional.pad(tensor, [0, 0] * (tensor.ndim - 1 - dim) + [0, missing])


class Shard:
    """One rank's part of a stream (b i j c), or of a tensor computed from a stream row by row (b i ...).

    `shape` is the shape of the whole stream. The stream is cut along dim `cut` (1 or 2), and both dims are padded to a
    multiple of the number of ranks; padding never affects real values. The part, `local`, is a stream of the executor
    on the rank: a tensor or a spilled stream. `made_by` is the update whose output the stream is. It is a key under
    which `Axial` remembers the dims along which such outputs are used.
    """

    def __init__(self, channel: Channel, shape: torch.Size, local: Stream, cut: int, made_by: object = None) -> None:
        self.channel, self.shape, self.made_by = channel, shape, made_by
        self._local, self._cut = local, cut
        self._moving: tuple[int, Pending] | None = None
        self.uses = 0  # how often `Axial` has used this output of an update, not counting recomputation

    @property
    def part(self) -> Stream:
        """This rank's part in its current state, cut along either dim."""
        return self._local

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the stream."""
        return self._local.dtype

    @property
    def device(self) -> torch.device:
        """The device of this rank's part."""
        return self._local.device

    @property
    def cut(self) -> int:
        """The dim along which the stream is cut, or will be after a running exchange."""
        return self._cut if self._moving is None else self._moving[0]

    def detach(self) -> "Shard":
        """Return a shard with the same part, detached from the autograd graph."""
        return Shard(self.channel, self.shape, self.along(self.cut).detach(), self.cut)

    def transpose(self, dim0: int, dim1: int, /) -> "Shard":
        """Return the shard of the stream with rows and columns exchanged; the dims must be 1 and 2."""
        assert {dim0, dim1} == {1, 2}
        b, i, j, *rest = self.shape
        return Shard(self.channel, torch.Size((b, j, i, *rest)), self.along(self.cut).transpose(1, 2), 3 - self.cut)

    def replace(self, local: Stream, cut: int) -> "Shard":
        """Replace this rank's part in place, so that the old part can be freed, and return this shard.

        `cut` is the dim along which the stream of the new part is cut.
        """
        self._local, self._cut = local, cut
        return self

    def start_exchange(self, cut: int) -> None:
        """Start an exchange after which the stream is cut along dim `cut`.

        Do nothing if it is already cut along this dim, or if an exchange is running.
        """
        if self._moving is None and cut != self._cut:
            pattern = "b (n i) j ... -> n b i j ..." if cut == 1 else "b i (n j) ... -> n b i j ..."
            blocks = rearrange(as_tensor(self._local), pattern, n=self.channel.group.size)
            self._moving = cut, self.channel.begin("all_to_all", blocks)

    def along(self, cut: int, exchange: Callable[[Stream, int], Stream] | None = None) -> Stream:
        """Return this rank's part of the stream, after cutting the stream along dim `cut`.

        It first waits for a running exchange. `exchange` maps the part and `cut` to the new part; without it, the whole
        part is exchanged by one all-to-all.
        """
        if self._moving is not None:
            self._cut, arriving = self._moving
            self._moving = None
            pattern = "n b i j ... -> b i (n j) ..." if self._cut == 1 else "n b i j ... -> b (n i) j ..."
            self._local = rearrange(arriving.wait(), pattern)
        if cut != self._cut and exchange is not None:
            self._local, self._cut = exchange(self._local, cut), cut
        elif cut != self._cut:
            self.start_exchange(cut)
            return self.along(cut)
        return self._local
