"""Updates of residual streams, and the interface of the executors that carry them out.

Every update is independent along one axis of its stream (rows or columns) once it has a context computed from the
whole stream. Modules define what is computed; an executor decides how.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.model.stream import Axis, Stream, transposed
from helixfold.ops.residual import Residual

Context = tuple[Tensor, ...]
ContextInput = tuple[Stream, Tensor]
Side = Literal["left", "right"]


@runtime_checkable
class Factored(Protocol):
    """An update computed from the products of two operands, each as large as the stream.

    An executor with memory for only a few channels of an operand can multiply some channels at a time and pass the
    joined products to `joined`.
    """

    @property
    def channels(self) -> int:
        """Number of channels of each operand and of the products."""

    def operand(
        self, slab: Float[Tensor, "b i k c_z"], mask: Float[Tensor, "b i k"], side: Side, channels: slice
    ) -> Float[Tensor, "b c i k"]:
        """Return some channels of the left or right operand of a slab's rows; products pair left with right rows."""

    def change(
        self, slab: Float[Tensor, "b i j c_z"], products: Float[Tensor, "b i j c"]
    ) -> Float[Tensor, "b i j c_z"]:
        """Return the change of a slab computed from all channels of its products."""


class Update(nn.Module):
    """An additive change of one stream.

    `context` and `forward` receive slabs: some rows of the stream (or of the context's input), transposed so that the
    axis declared here is dim 1. The result for one row never depends on which other rows are in the slab. Executors
    measure the memory that a row takes, so updates say nothing about memory.

    `forward` returns the change, or if it is given a `residual`, the sum of the residual's stream and the change: where
    one kernel computes both, the change is never in memory. Executors give one to updates that take it.
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
        """Return the part of the context that comes from these rows of the context's input."""
        return ()

    def dropout_mask(
        self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "b #i #j c"] | None:
        """Draw the factors of the change of a stream of that shape (b i j c): one mask for all its rows or columns.

        Return None if nothing is dropped. AlphaFold 2, Suppl. Sec. 1.11.6. The numbers come from the device's default
        random stream.
        """
        if not self.training or self.dropout_rate == 0:
            return None
        b, i, j, c = shape
        shared = (b, 1, j, c) if self.dropout_axis == "rows" else (b, i, 1, c)
        kept = 1 - self.dropout_rate
        return torch.empty(shared, dtype=dtype, device=device).bernoulli_(kept).div_(kept)

    def added(self, residual: Residual, mask: Tensor, context: Context | None, *rows: Tensor) -> Tensor:
        """Return a residual's stream plus the change of that slab, for which the rest are the arguments."""
        arguments = (residual.stream, mask, context, *rows)
        found: Tensor = self(*arguments, residual=residual) if self.takes_residual else residual.plus(self(*arguments))
        return found


@runtime_checkable
class Executor(Protocol):
    """The interface of executors, which carry out updates and make, hold and read streams."""

    def __call__(
        self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None = None
    ) -> Stream:
        """Return the stream plus the update's change; the context comes from `context_from` or from the stream itself.

        The stream may be overwritten: use only the result.
        """

    def map_rows(self, make: Callable[..., Tensor], *streams: Stream) -> Stream:
        """Return a new stream made of the rows (dim 1) that `make(rows, *slabs)` returns.

        `rows` is a slice of row numbers and the slabs are these rows of each stream; plain tensors, such as features
        and masks, are streams too. A `make` that closes over a whole tensor slices it by `rows`.
        """

    def replace_rows(self, make: Callable[..., Tensor], stream: Stream, *streams: Stream) -> Stream:
        """Return the first stream with its rows replaced by those that `make(rows, *slabs)` returns, of equal shape.

        The first stream may be overwritten: use only the result.
        """
        return self.map_rows(make, stream, *streams)

    def copy(self, stream: Stream) -> Stream:
        """Return a stream that may be overwritten while this one is still needed."""
        return stream

    def first_rows(self, stream: Stream, count: int) -> Stream:
        """Return the first `count` rows as a stream, which may have the same memory."""
        return as_tensor(stream)[:, :count]

    def streams_at_once(self, count: int, device: torch.device) -> int:
        """Return how many of `count` streams of one shape should be computed together, as the samples of one batch."""
        return 1

    def gather(self, stream: Stream) -> Tensor:
        """Return the whole stream as a tensor on the computing device, which may have the same memory."""
        return as_tensor(stream)


def as_tensor(stream: Stream) -> Tensor:
    """Return the stream if it is a tensor; raise TypeError if it belongs to another kind of executor."""
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
