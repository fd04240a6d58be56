"""Streams that live on a disk, or beside a GPU in the host's memory: inference beyond what streams themselves take."""

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from helixfold.config import ConfigError
from helixfold.execution.counter import held_elsewhere
from helixfold.execution.mapped import mapped_tensor
from helixfold.execution.slabs import Held, Slabs, row_slices
from helixfold.execution.spilled_stream import HostMemory, SpilledStream
from helixfold.execution.staging import SLOTS, Lane, visited
from helixfold.model.update import Stream, as_tensor
from helixfold.ops.card import card_of, is_described

# Smaller streams, or those of so few channels (logits, errors), are used whole by whoever asked for them.
LEAST_BYTES = 16 * 2**20
LEAST_CHANNELS = 32


class Spilled(Slabs):
    """As `Slabs`, in the memory of one context and a few slabs: the streams that `map_rows` makes live elsewhere.

    Beside a CPU that is a file without a name in `directory`, one for each stream, as large as it and gone with it.
    Every update reads its stream twice and writes it once, while it computes: in the system's cache of files as long as
    that has room, but what is written reaches the disk sooner or later. Beside a GPU streams live in pinned host
    memory. This has been tested with the CPU in the place of the GPU, but not yet run on one.
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
        given = [*streams] if changed is None else [*streams, changed]
        lanes: list[Lane] = []
        for stream in given:
            # What is read and changed at once is staged once.
            if isinstance(stream, SpilledStream) and not any(stream.same_rows(lane.stream) for lane in lanes):
                lanes.append(Lane(stream, size))
        written = [lane for lane in lanes if isinstance(changed, SpilledStream) and changed.same_rows(lane.stream)]
        parts = [*row_slices(streams[0].shape[1], size)]
        staged_parts: Iterator[tuple[slice, list[Tensor]]]
        if not lanes:
            staged_parts = ((part, list[Tensor]()) for part in parts)
        elif is_described():
            staged_parts = ((part, [lane.slab(0, part) for lane in lanes]) for part in parts)
        else:
            staged_parts = visited(lanes, written, parts, self._device)
        for part, staged in staged_parts:

            def slab(stream: Held, part: slice = part, staged: list[Tensor] = staged) -> Tensor:
                if not isinstance(stream, SpilledStream):
                    return as_tensor(stream[:, part])
                return next(each for each, lane in zip(staged, lanes, strict=True) if stream.same_rows(lane.stream))

            yield part, [slab(each) for each in streams], None if changed is None else slab(changed)

    def _stream(self, shape: Sequence[int], dtype: torch.dtype) -> SpilledStream:
        if is_described():
            with held_elsewhere():
                tensor = torch.empty(shape, dtype=dtype, device="meta")
            return SpilledStream(tensor, HostMemory(crosses=card_of(tensor.device).kind != "cpu"), tensor.device)
        if self._device.type != "cpu":
            return SpilledStream(torch.empty(shape, dtype=dtype, pin_memory=True), HostMemory(), self._device)
        tensor, file = mapped_tensor(self.directory, shape, dtype)
        return SpilledStream(tensor, file, self._device)
