"""Differentiable asynchronous collectives: the backward of each is its adjoint.

A collective is started by one call and awaited by another, so that computation overlaps with it. In the backward pass
the adjoint is started where the gradient arrives and awaited where it is used.

On a GPU, to wait means that the stream on which PyTorch computes waits, not the host. A collective of NCCL runs on a
stream of its own, which first waits for what was computed before the start, so that its input is complete. `Pending`
holds the input until the wait, and what is computed after the wait sees the whole output; so no memory is used again
while a collective reads or writes it.
"""

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from helixfold.parallel.mesh import Group

# Named as in `torch.distributed`; "swap" gives each of two ranks the other's tensor.
Kind = Literal["all_to_all", "all_gather", "reduce_scatter", "swap", "broadcast", "reduce"]
# Used by branch parallelism; the others are used by axial parallelism.
BETWEEN_BRANCHES: frozenset[Kind] = frozenset({"swap", "broadcast", "reduce"})
_ADJOINT: dict[Kind, Kind] = {
    "all_to_all": "all_to_all",
    "all_gather": "reduce_scatter",
    "swap": "swap",
    "broadcast": "reduce",
}
# Their names since PyTorch 2.13, and before.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

# A collective that this rank took part in, and the bytes that it sent in it.
Message = tuple[Kind, int]


class Channel:
    """The collectives of a group, which all its ranks must start in the same order.

    If a list of `messages` is given, every collective is added to it.
    """

    def __init__(self, group: Group, messages: list[Message] | None = None) -> None:
        self.group, self.messages = group, messages

    def begin(self, kind: Kind, tensor: Tensor, root: int = 0) -> "Pending":
        """Start a differentiable collective; `root` is the rank that a broadcast sends from.

        The input and output of "all_to_all" and the output of "all_gather" have ranks as their first dimension.
        """
        return Pending(self, kind, tensor, root)

    def start(self, kind: Kind, tensor: Tensor, root: int) -> "tuple[Tensor, dist.Work | _Done]":
        """Start a collective and return its output, which is filled once the returned work is done.

        In a simulated group the output is zeros.
        """
        n, group = self.group.size, self.group.handle
        tensor = tensor.contiguous()
        shape = {"all_gather": (n, *tensor.shape), "reduce_scatter": tensor.shape[1:]}.get(kind, tensor.shape)
        if self.messages is not None:
            self.messages.append((kind, self._bytes_sent(kind, tensor, root)))
        if group is None:
            return tensor.new_zeros(shape), _Done()
        options: dict[str, Any] = {"group": group, "async_op": True}
        output = tensor.clone() if kind in ("broadcast", "reduce") else tensor.new_empty(shape)
        if kind == "all_to_all":
            work = dist.all_to_all_single(output, tensor, **options)
        elif kind == "all_gather":
            work = _all_gather(output.view(-1), tensor.view(-1), **options)
        elif kind == "reduce_scatter":
            work = _reduce_scatter(output.view(-1), tensor.view(-1), **options)
        elif kind == "swap":
            # In a group of one the other rank is the rank itself.
            to_other = [0] * n
            to_other[-1 - self.group.rank] = tensor.numel()
            work = dist.all_to_all_single(output.view(-1), tensor.view(-1), to_other, to_other, **options)
        elif kind == "broadcast":
            work = dist.broadcast(output, group_src=root, **options)
        else:
            work = dist.reduce(output, group_dst=root, **options)
        return output, work

    def _bytes_sent(self, kind: Kind, tensor: Tensor, root: int) -> int:
        n, rank = self.group.size, self.group.rank
        others = {"broadcast": (n - 1) * (rank == root), "reduce": int(rank != root)}.get(kind, n - 1)
        size = tensor.nbytes // n if kind in ("all_to_all", "reduce_scatter") else tensor.nbytes
        return size * others


class _Done:
    """A collective that is already done."""

    def wait(self) -> None:
        """Return at once."""


class Pending:
    """A collective in progress."""

    def __init__(self, channel: Channel, kind: Kind, tensor: Tensor, root: int = 0) -> None:
        self.channel, self.kind, self.root = channel, kind, root
        self._under_way: tuple[Tensor, Tensor, dist.Work | _Done] | None = None
        # An empty tensor links the start and the wait in the autograd graph.
        self._token = _Start.apply(tensor, self)

    def wait(self) -> Tensor:
        """Wait for the collective and return its output."""
        output: Tensor = _Wait.apply(self._token, self)
        return output

    def start(self, kind: Kind, tensor: Tensor) -> None:
        """Start the collective or its adjoint."""
        # The input must live until it has been sent.
        output, work = self.channel.start(kind, tensor, self.root)
        self._under_way = tensor, output, work

    def finish(self) -> Tensor:
        """Wait for what was started and return its output."""
        assert self._under_way is not None
        _, output, work = self._under_way
        self._under_way = None
        work.wait()
        return output


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, pending: Pending) -> Tensor:
        ctx.pending = pending
        pending.start(pending.kind, tensor)
        return tensor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        pending = ctx.pending
        gradient = pending.finish()
        if pending.kind == "broadcast" and pending.channel.group.rank != pending.root:
            # This rank's input was not used.
            gradient.zero_()
        return gradient, None


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, pending: Pending) -> Tensor:
        ctx.pending = pending
        return pending.finish()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.pending.start(_ADJOINT[ctx.pending.kind], gradient)
        return gradient.new_empty(0), None
