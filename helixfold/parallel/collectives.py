"""Collectives of the ranks of a group, as functions with gradients: each one's backward is its adjoint.

A collective is started and waited for in two calls, so that something else can be computed meanwhile, and its adjoint
is started where the gradient arrives and waited for where it is used, the other way round.
"""

from collections import Counter
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from helixfold.parallel.mesh import Group

# As in `torch.distributed`; "swap" gives each of two ranks what the other one has.
Kind = Literal["all_to_all", "all_gather", "reduce_scatter", "swap", "broadcast", "reduce"]
# Those between the ranks of two branches; the others are between ranks that cut streams.
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


class Traffic:
    """Counts how often this rank took part in each kind of collective, and the bytes that it sent to others in them."""

    def __init__(self) -> None:
        self.calls: Counter[Kind] = Counter()
        self.sent: Counter[Kind] = Counter()
        self.messages: list[tuple[Kind, int]] = []  # of pretended groups, each with its bytes


class Channel:
    """The collectives of a group. All its ranks start the same ones in the same order."""

    def __init__(self, group: Group, traffic: Traffic | None = None) -> None:
        self.group = group
        self.traffic = traffic or Traffic()

    def begin(self, kind: Kind, tensor: Tensor, root: int = 0) -> "Pending":
        """Start a collective that has an adjoint; in a broadcast every rank gets what the rank `root` has.

        The first dimension of what "all_to_all" takes and returns, and of what "all_gather" returns, numbers the ranks.
        """
        return Pending(self, kind, tensor, root)

    def start(self, kind: Kind, tensor: Tensor, root: int) -> "tuple[Tensor, dist.Work | _Done]":
        """Return the memory that a collective will fill, and the collective.

        In a group whose other ranks are pretended it is filled with zeros at once, and the bytes are counted.
        """
        n, group = self.group.size, self.group.handle
        tensor = tensor.contiguous()
        shape = {"all_gather": (n, *tensor.shape), "reduce_scatter": tensor.shape[1:]}.get(kind, tensor.shape)
        sent = self._count(kind, tensor, root)
        if group is None:
            self.traffic.messages.append((kind, sent))
            return tensor.new_zeros(shape), _Done()
        options: dict[str, Any] = {"group": group, "async_op": True}
        found = tensor.clone() if kind in ("broadcast", "reduce") else tensor.new_empty(shape)
        if kind == "all_to_all":
            work = dist.all_to_all_single(found, tensor, **options)
        elif kind == "all_gather":
            work = _all_gather(found.view(-1), tensor.view(-1), **options)
        elif kind == "reduce_scatter":
            work = _reduce_scatter(found.view(-1), tensor.view(-1), **options)
        elif kind == "swap":
            # A group of one has itself as the other.
            to_other = [0] * n
            to_other[-1 - self.group.rank] = tensor.numel()
            work = dist.all_to_all_single(found.view(-1), tensor.view(-1), to_other, to_other, **options)
        elif kind == "broadcast":
            work = dist.broadcast(found, group_src=root, **options)
        else:
            work = dist.reduce(found, group_dst=root, **options)
        return found, work

    def _count(self, kind: Kind, tensor: Tensor, root: int) -> int:
        n, rank = self.group.size, self.group.rank
        others = {"broadcast": (n - 1) * (rank == root), "reduce": int(rank != root)}.get(kind, n - 1)
        size = tensor.nbytes // n if kind in ("all_to_all", "reduce_scatter") else tensor.nbytes
        self.traffic.calls[kind] += 1
        self.traffic.sent[kind] += size * others
        return size * others


class _Done:
    """A collective that nobody need wait for."""

    def wait(self) -> None:
        """Return at once."""


class Pending:
    """A collective under way."""

    def __init__(self, channel: Channel, kind: Kind, tensor: Tensor, root: int = 0) -> None:
        self.channel, self.kind, self.root = channel, kind, root
        self._under_way: tuple[Tensor, Tensor, dist.Work | _Done] | None = None
        # The graph leads from the call that starts to the one that waits, by a tensor of nothing.
        self._token = _Start.apply(tensor, self)

    def wait(self) -> Tensor:
        """Return what was sent here."""
        found: Tensor = _Wait.apply(self._token, self)
        return found

    def start(self, kind: Kind, tensor: Tensor) -> None:
        # What is sent is held until it has been.
        self._under_way = (tensor, *self.channel.start(kind, tensor, self.root))

    def finish(self) -> Tensor:
        assert self._under_way is not None
        _, found, work = self._under_way
        self._under_way = None
        work.wait()
        return found


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
            # What this rank had was not used by anyone.
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
