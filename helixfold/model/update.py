"""Updates of residual streams, and the interface of the executors that run them.

Every update is independent along one axis of its stream (rows or columns), given a context that is computed from the
whole stream. Modules define the computation; an executor determines how it is done.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.model.stream import Axis, Stream, transposed
from helixfold.ops.residual import Residual

# Tensors that an update computes from a whole stream and reads for every slab.
Context = tuple[Tensor, ...]
# The stream from which a context is computed, and its mask.
ContextInput = tuple[Stream, Tensor]
Side = Literal["left", "right"]


@runtime_checkable
class Factored(Protocol):
    """An update computed from the products of two operands, each as large as the stream.

    The products of edge ij are the sums of left ik times right jk over k, separately for each channel. An executor with
    memory for only a few channels of an operand can multiply a few channels at a time and pass the products of all
    channels to `change`.
    """

    @property
    def channels(self) -> int:
        """Number of channels of each operand and of the products."""

    def operand(
        self, slab: Float[Tensor, "b i k c_z"], mask: Float[Tensor, "b i k"], side: Side, channels: slice
    ) -> Float[Tensor, "b c i k"]:
        """Return the channels `channels` of the left or right operand for the rows of a slab."""

    def change(
        self, slab: Float[Tensor, "b i j c_z"], products: Float[Tensor, "b i j c"]
    ) -> Float[Tensor, "b i j c_z"]:
        """Return the change of a slab from all channels of its products."""


class Update(nn.Module):
    """Base class of modules that compute an additive change of one stream.

    `context` and `forward` receive slabs: some rows of the stream (or of the context's input), transposed so that the
    axis declared here is dim 1. The result for a row never depends on the other rows in the slab.

    `forward` returns the change, or the sum of a stream and the change if the stream is passed as `residual`. If one
    kernel computes both, the change is never in memory. Executors pass a residual to updates that support it.

    `axis` is the stream's axis along which `forward` is independent; if `elementwise`, it is along both. `context` may
    be computed in parts along `context_axis` of its input, which are joined along dim `context_dim` of every tensor.
    Other attributes are whether `forward` computes the context of a whole stream itself, whether it also receives the
    slab's rows of the context's input, whether it takes a residual, and along which axis dropout is equal.
    """

    axis: Axis = "rows"  # the stream's axis along which `forward` is independent
    elementwise: bool = False  # whether `forward` is independent along both axes
    context_axis: Axis = "rows"  # the axis of the context's input along which `context` may be computed in parts
    context_dim: int = 1  # the dim of every context tensor along which these parts are joined
    makes_own_context: bool = False  # whether `forward` takes None as the context of a slab that is the whole stream
    reads_context_rows: bool = False  # whether `forward` also receives the slab's rows of the context's input
    takes_residual: bool = False  # whether `forward` also takes a `residual` by this name
    dropout_axis: Axis = "rows"  # the axis along which all elements have the same dropout mask
    dropout_rate: float = 0.0

    def context(self, slab: Tensor, mask: Tensor) -> Context:
        """Return the part of the context from these rows of the context's input; by default the context is empty."""
        return ()

    def dropout_mask(
        self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "b #i #j c"] | None:
        """Sample a dropout mask for a stream of this shape (b i j c), shared by all its rows or columns.

        Elements are 0, or 1 / keep rate. Return None outside training or without dropout. AlphaFold 2, Suppl. Sec.
        1.11.6. The device's default random generator is used.
        """
        if not self.training or self.dropout_rate == 0:
            return None
        b, i, j, c = shape
        shared = (b, 1, j, c) if self.dropout_axis == "rows" else (b, i, 1, c)
        keep_rate = 1 - self.dropout_rate
        return torch.empty(shared, dtype=dtype, device=device).bernoulli_(keep_rate).div_(keep_rate)

    def added(self, residual: Residual, mask: Tensor, context: Context | None, *rows: Tensor) -> Tensor:
        """Return a slab, the residual's stream, plus its change times the dropout mask of the residual.

        The other arguments are passed to `forward`.
        """
        arguments = (residual.stream, mask, context, *rows)
        result: Tensor = self(*arguments, residual=residual) if self.takes_residual else residual.plus(self(*arguments))
        return result


@runtime_checkable
class Executor(Protocol):
    """Interface of executors, which run updates and create, store and read streams."""

    def __call__(
        self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None = None
    ) -> Stream:
        """Return the stream plus the update's change; the context is computed from `context_from` or from the stream.

        The stream may be overwritten: use only the result.
        """

    def map_rows(self, make: Callable[..., Tensor], *streams: Stream) -> Stream:
        """Return a new stream of the rows (dim 1) that `make(rows, *slabs)` returns.

        `rows` is a slice of row indices, and the slabs are these rows of each stream. Tensors such as features and
        masks are streams, too. A `make` that closes over a whole tensor must slice it by `rows`.
        """

    def replace_rows(self, make: Callable[..., Tensor], stream: Stream, *streams: Stream) -> Stream:
        """Return the first stream with rows replaced by the rows that `make(rows, *slabs)` returns, of equal shape.

        The first stream may be overwritten: use only the result.
        """
        return self.map_rows(make, stream, *streams)

    def copy(self, stream: Stream) -> Stream:
        """Return a copy of a stream, so that a call may overwrite one of them.

        Executors that never overwrite streams return the stream itself.
        """
        return stream

    def first_rows(self, stream: Stream, count: int) -> Stream:
        """Return the first `count` rows (dim 1) as a stream, which may share memory."""
        return as_tensor(stream)[:, :count]

    def streams_at_once(self, count: int, device: torch.device) -> int:
        """Return how many of `count` streams of one shape to compute together, as samples of one batch; here 1."""
        return 1

    def gather(self, stream: Stream) -> Tensor:
        """Return the whole stream as a tensor on the computing device, which may share memory."""
        return as_tensor(stream)


def as_tensor(stream: Stream) -> Tensor:
    """Return the stream if it is a tensor; raise TypeError for streams of other executors."""
    if not isinstance(stream, Tensor):
        raise TypeError(f"this executor takes tensors; a {type(stream).__name__} belongs to the executor that made it")
    return stream


__all__ = [
    "Axis",
    "Context",
    "ContextInput",
    "Executor",
    "Factored",
    "Stream",
    "Update",
    "as_tensor",
    "transposed",
]
