"""What the model changes: residual streams, wherever their memory is."""

from typing import Literal, Protocol, TypeVar, runtime_checkable

import torch

Axis = Literal["rows", "columns"]
# The dim of a stream (b rows columns channels) that each axis is.
DIM: dict[Axis, int] = {"rows": 1, "columns": 2}


@runtime_checkable
class Stream(Protocol):
    """A residual stream (b rows columns channels), or what is made of one row by row (b rows ...).

    A tensor is a stream that owns its memory. Executors have others: a buffer in a file or in the host's memory
    (`SpilledStream`), and one rank's part of what several ranks share (`Shard`). Shape, dtype and device are those of
    the whole and of the device that computes with it, whoever owns the memory. The model hands streams on and asks the
    executor for their rows, or for all of one.
    """

    @property
    def shape(self) -> torch.Size:
        """The whole stream's shape."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the stream's numbers."""

    @property
    def device(self) -> torch.device:
        """The device on which its rows are computed with."""

    def detach(self) -> "Stream":
        """Return the same stream without its gradient."""

    def transpose(self, dim0: int, dim1: int, /) -> "Stream":
        """Return the same stream with rows and columns exchanged."""


AnyStream = TypeVar("AnyStream", bound=Stream)


def transposed(stream: AnyStream, axis: Axis) -> AnyStream:
    """Return a view of a stream, or of its mask, that has `axis` at dim 1; done twice, it is the stream again."""
    return stream if axis == "rows" else stream.transpose(1, 2)  # type: ignore[return-value]
