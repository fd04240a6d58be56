"""Residual streams: the MSA and pair representations that the model updates, in any memory."""

from typing import Literal, Protocol, TypeVar, runtime_checkable

import torch

Axis = Literal["rows", "columns"]
# The tensor dim of each axis of a stream (b rows columns channels).
DIM: dict[Axis, int] = {"rows": 1, "columns": 2}


@runtime_checkable
class Stream(Protocol):
    """A residual stream, such as the MSA or pair representation, or an array that is computed from it row by row.

    Dims are (b rows columns channels), or (b rows ...) for computed arrays. A tensor is a stream. Executors have other
    kinds: a buffer in a file or in host memory (`SpilledStream`), and one rank's part of a stream that is divided over
    several ranks (`Shard`). `shape` is always the shape of the whole stream, and `device` the device that computes. The
    model never reads a stream directly; executors pass rows of it, or all of it, to functions of the model.
    """

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole stream."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the stream's elements."""

    @property
    def device(self) -> torch.device:
        """Device that computes with the stream's rows."""

    def detach(self) -> "Stream":
        """Return the same stream without its gradient."""

    def transpose(self, dim0: int, dim1: int, /) -> "Stream":
        """Return a view of the stream with two dims exchanged, which must be 1 and 2 (rows and columns)."""


AnyStream = TypeVar("AnyStream", bound=Stream)


def transposed(stream: AnyStream, axis: Axis) -> AnyStream:
    """Return a stream or its mask with `axis` at dim 1: unchanged for "rows", a transposed view for "columns".

    A second call restores the original order.
    """
    return stream if axis == "rows" else stream.transpose(1, 2)  # type: ignore[return-value]
