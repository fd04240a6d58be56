"""Inference with streams on a disk, or in the host's memory beside a GPU, for chains whose streams do not fit."""

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from helixfold.config import ConfigError
from helixfold.execution.counter import counted_as_offloaded
from helixfold.execution.slabs import Held, Slabs, row_slices
from helixfold.execution.spilled_stream import HostMemory, SpilledStream, mapped_tensor
from helixfold.execution.staging import SLOTS, Lane, visited
from helixfold.model.update import Stream, as_tensor
from helixfold.ops.card import card_of, is_described

# Streams of fewer bytes, or of fewer channels (logits, errors), stay on the device: their users need all of them.
LEAST_BYTES = 16 * 2**20
LEAST_CHANNELS = 32


class Spilled(Slabs):
    """Executor that works as `Slabs` does, in the memory of one context and a few slabs.

    The streams that `map_rows` makes are spilled: they are kept in other memory than the device's. On a CPU each is an
    unnamed file in `directory`, as large as the stream and deleted with it. Every update reads its stream twice and
    writes it once while it computes; the system caches these files as far as its memory allows. On a GPU streams are
    in pinned host memory, which has been tested with the CPU in place of a GPU, but not yet on one.

    Raise `ConfigError` if `directory` does not exist.
    """

    def __init__(
        self,
        directory: Path | str,
        budget: int | None = None,
        rows: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(budget, rows)
        self.directory = Path(directory)
        if not self.directory.is_dir():
            raise ConfigError(f"streams can only be spilled to a directory that exists, got {directory}")
        self._device = torch.device(device)

    def room(self, like: Tensor, shape: Sequence[int]) -> Held:
        if len(shape) < 4 or shape[-1] < LEAST_CHANNELS or prod(shape) * like.element_size() < LEAST_BYTES:
            return super().room(like, shape)
        return self._stream(shape, like.dtype)

    def staged(self, stream: Stream) -> int:
        if not isinstance(stream, SpilledStream):
            return 0
        b, _, *rest = stream.shape
        return SLOTS * b * prod(rest) * stream.dtype.itemsize

    def visited(
        self, streams: Sequence[Held], size: int, changed: Held | None = None
    ) -> Iterator[tuple[slice, list[Tensor], Tensor | None]]:
        lanes: list[Lane] = []

        def lane_of(stream: Held | None) -> Lane | None:
            same = (lane for lane in lanes if isinstance(stream, SpilledStream) and stream.same_rows(lane.stream))
            return next(same, None)

        def slab(stream: Held, slot: int, part: slice) -> Tensor:
            lane = lane_of(stream)
            return as_tensor(stream[:, part]) if lane is None else lane.slab(slot, part)

        for stream in streams if changed is None else [*streams, changed]:
            # A stream that is both read and changed is staged once.
            if isinstance(stream, SpilledStream) and lane_of(stream) is None:
                lanes.append(Lane(stream, size))
        parts = [*row_slices(streams[0].shape[1], size)]
        if lanes and not is_described():
            slots = visited(lanes, [lane for lane in lanes if lane is lane_of(changed)], parts, self._device)
        else:
            slots = ((part, 0) for part in parts)
        for part, slot in slots:
            slabs = [slab(each, slot, part) for each in streams]
            yield part, slabs, None if changed is None else slab(changed, slot, part)

    def _stream(self, shape: Sequence[int], dtype: torch.dtype) -> SpilledStream:
        if is_described():
            with counted_as_offloaded():
                tensor = torch.empty(shape, dtype=dtype, device="meta")
            return SpilledStream(tensor, HostMemory(crosses=card_of(tensor.device).kind != "cpu"), tensor.device)
        if self._device.type != "cpu":
            return SpilledStream(torch.empty(shape, dtype=dtype, pin_memory=True), HostMemory(), self._device)
        tensor, file = mapped_tensor(self.directory, shape, dtype)
        return SpilledStream(tensor, file, self._device)
