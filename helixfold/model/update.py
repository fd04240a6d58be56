"""The one idea: a residual stream is changed by updates, and an executor decides how each of them is carried out.

An update is independent along one axis of its stream (rows or columns) once it has been given a context that is
computed from the whole. Modules say what is computed; executors say how.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.model.stream import Axis, Stream, transposed

Context = tuple[Tensor, ...]
ContextInput = tuple[Stream, Tensor]
Side = Literal["left", "right"]


@runtime_checkable
class Factored(Protocol):
    """An update whose change is made from the products of two operands, each of them as large as its stream.

    An executor that has room for a few channels of an operand alone can carry it out in parts: it multiplies some
    channels of both operands at a time, and joins the products.
    """

    @property
    def channels(self) -> int:
        """The number of channels of each operand and of the products."""

    def operand(
        self, slab: Float[Tensor, "b i k c_z"], mask: Float[Tensor, "b i k"], side: Side, channels: slice
    ) -> Float[Tensor, "b c i k"]:
        """Return some channels of the operand of the slab's own rows (left), or of those that they meet (right)."""

    def joined(
        self, slab: Float[Tensor, "b i j c_z"], products: Float[Tensor, "b i j c"]
    ) -> Float[Tensor, "b i j c_z"]:
        """Return the change of a slab from all channels of its products."""


class Update(nn.Module):
    """An additive change of one stream.

    Both methods see a slab: any number of rows of the stream (or of the stream that the context comes from), transposed
    so that the axis named here is dim 1. What they compute for one row never depends on which other rows are in the
    slab. What a row takes is measured by whoever carries an update out, so nothing here speaks of memory.
    """

    axis: Axis = "rows"  # of the stream, along which `forward` is independent
    elementwise: bool = False  # whether it is so along both
    context_axis: Axis = "rows"  # of the context's input, along which `context` may be computed in parts
    context_dim: int = 1  # of every context tensor, along which these parts are joined
    reads_context_rows: bool = (
        False  # whether `forward` also gets the rows of the context's input that belong to a slab
    )
    dropout_axis: Axis = "rows"  # along which a dropout mask is shared
    dropout_rate: float = 0.0

    def context(self, slab: Tensor, mask: Tensor) -> Context:
        """Return what `forward` must know of the whole input of the context, from some of its rows."""
        return ()

    def factors(self) -> Factored | None:
        """Return how the change is made from products of two operands; None for an update that is not."""
        return None

    def dropout_mask(
        self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "b #i #j c"] | None:
        """Draw what the change of a stream of that shape (b i j c) is multiplied by: one mask for all rows or columns.

        Returns None where nothing is dropped. AlphaFold 2, Suppl. Sec. 1.11.6. The next numbers of the device's random
        stream are drawn.
        """
        if not self.training or self.dropout_rate == 0:
            return None
        b, i, j, c = shape
        shared = torch.ones((b, 1, j, c) if self.dropout_axis == "rows" else (b, i, 1, c), dtype=dtype, device=device)
        return torch.nn.functional.dropout(shared, self.dropout_rate)


@runtime_checkable
class Executor(Protocol):
    """Carries out updates, makes streams, and knows how each is held."""

    def __call__(
        self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None = None
    ) -> Stream:
        """Return the stream with the update added; the context comes from `context_from`, or from the stream itself.

        The stream is given away: use only what is returned.
        """

    def map_rows(self, make: Callable[..., Tensor], *streams: Stream) -> Stream:
        """Return a new stream of the rows that `make(rows, *slabs)` returns at dim 1.

        `rows` is a slice of row numbers, and the slabs are these rows of all the streams; plain tensors, such as
        features and masks, are streams too. Whoever needs more of the whole than its own rows slices that by `rows`.
        """

    def replace_rows(self, make: Callable[..., Tensor], stream: Stream, *streams: Stream) -> Stream:
        """Return the first stream with its rows replaced by those that `make(rows, *slabs)` returns, of equal shape.

        The first stream is given away: use only what is returned.
        """
        return self.map_rows(make, stream, *streams)

    def copy(self, stream: Stream) -> Stream:
        """Return a stream that may be given away while this one is still needed."""
        return stream

    def first_rows(self, stream: Stream, count: int) -> Stream:
        """Return a stream of the first `count` rows, which may share the memory."""
        return as_tensor(stream)[:, :count]

    def gather(self, stream: Stream) -> Tensor:
        """Return all of a stream as a tensor on the device that computes, which may share its memory."""
        return as_tensor(stream)


def as_tensor(stream: Stream) -> Tensor:
    """Return a stream that is a tensor, for executors that know no others.

    Raises TypeError for a stream that another executor holds.
    """
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
