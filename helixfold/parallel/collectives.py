"""Differentiable asynchronous collectives. The backward pass of each is its adjoint.

One call starts a collective and another waits for it, so that computation overlaps with it. In the backward pass the
adjoint is started when the gradient arrives, and awaited where it is used.

On a GPU the current CUDA stream waits, not the host. NCCL runs a collective on its own stream, which first waits for
earlier computations, so that the input is complete. `Pending` keeps a reference to the input until the wait, and
computations after the wait read the complete output. Memory is therefore never reused while a collective reads or
writes it.
"""

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from helixfold.parallel.mesh import Group

# Named as in `torch.distributed`; "swap" exchanges the tensors of two ranks.
Kind = Literal["all_to_all", "all_gather", "reduce_scatter", "swap", "broadcast", "reduce"]
# Collectives of branch parallelism; the others are used by axial parallelism.
BETWEEN_BRANCHES: frozenset[Kind] = frozenset({"swap", "broadcast", "reduce"})
# The collective that computes the gradient of the input of another.
_ADJOINT: dict[Kind, Kind] = {
    "all_to_all": "all_to_all",
    "all_gather": "reduce_scatter",
    "swap": "swap",
    "broadcast": "reduce",
}
# Names since PyTorch 2.13 and before.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

# A collective and the bytes that this rank sent in it.
Message = tuple[Kind, int]


class Channel:
    """Collectives of a group of ranks, which all ranks must start in the same order.

    Every collective is appended to `messages`, with the bytes that this rank sends, if that is a list.
    """

    def __init__(self, group: Group, messages: list[Message] | None = None) -> None:
        self.group, self.messages = group, messages

    def begin(self, kind: Kind, tensor: Tensor, root: int = 0) -> "Pending":
        """Start a differentiable collective and return it; `Pending.wait` returns its output.

        `root` is the rank in the group that is the source of a broadcast. The input and output of "all_to_all" and the
        output of "all_gather" have ranks as their first dimension.
        """
        return Pending(self, kind, tensor, root)

    def start(self, kind: Kind, tensor: Tensor, root: int) -> "tuple[Tensor, dist.Work | _Done]":
        """Start a collective and return its output, which is complete once the returned work is done.

        Autograd does not see it. `root` is the rank in the group that is the source of a "broadcast" or the destination
        of a "reduce". In a simulated group nothing is sent, and the output is zeros.
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
            # In a group of one, the other rank is the rank itself.
            to_other = [0] * n
            to_other[-1 - self.group.rank] = tensor.numel()
            work = dist.all_to_all_single(output.view(-1), tensor.view(-1), to_other, to_other, **options)
        elif kind == "broadcast":
            work = dist.broadcast(output, group_src=root, **options)
        else:
            work = dist.reduce(output, group_dst=root, **options)
        return output, work

    def _bytes_sent(self, kind: Kind, tensor: Tensor, root: int) -> int:
        """Return the bytes that this rank sends in a collective."""
        n, rank = self.group.size, self.group.rank
        others = {"broadcast": (n - 1) * (rank == root), "reduce": int(rank != root)}.get(kind, n - 1)
        size = tensor.nbytes // n if kind in ("all_to_all", "reduce_scatter") else tensor.nbytes
        return size * others


class _Done:
    """Work of a collective that is already complete."""

    def wait(self) -> None:
        """Return at once."""


class Pending:
    """A differentiable collective in progress; in the backward pass, its adjoint.

    `tensor` is its input and `kind` is the collective of the forward pass. Callers use `wait`; the autograd functions
    use `start` and `finish`.
    """

    def __init__(self, channel: Channel, kind: Kind, tensor: Tensor, root: int = 0) -> None:
        self.channel, self.kind, self.root = channel, kind, root
        self._running: tuple[Tensor, Tensor, dist.Work | _Done] | None = None
        # An empty tensor connects the start and the wait in the autograd graph.
        self._token = _Start.apply(tensor, self)

    def wait(self) -> Tensor:
        """Wait for the collective and return its output, which is part of the autograd graph."""
        output: Tensor = _Wait.apply(self._token, self)
        return output

    def start(self, kind: Kind, tensor: Tensor) -> None:
        """Start a collective on a tensor: this one, or in the backward pass its adjoint on the gradient."""
        # The input must live until it has been sent.
        output, work = self.channel.start(kind, tensor, self.root)
        self._running = tensor, output, work

    def finish(self) -> Tensor:
        """Wait for the collective that `start` began, and return its output without an autograd graph."""
        assert self._running is not None
        _, output, work = self._running
        self._running = None
        work.wait()
        return output


class _Start(torch.autograd.Function):
    """Autograd function that starts a collective, and in the backward pass waits for its adjoint."""

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
            # The input of this rank was not used.
            gradient.zero_()
        return gradient, None


class _Wait(torch.autograd.Function):
    """Autograd function that waits for a collective, and in the backward pass starts its adjoint."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, pending: Pending) -> Tensor:
        ctx.pending = pending
        return pending.finish()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.pending.start(_ADJOINT[ctx.pending.kind], gradient)
        return gradient.new_empty(0), None
