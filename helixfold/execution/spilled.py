"""Inference with streams on a disk, or in host memory next to a GPU, for chains whose streams do not fit."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from helixfold.execution.counter import counted_as_offloaded
from helixfold.execution.slabs import LocalStream, Slabs, row_slices
from helixfold.execution.spilled_stream import HostMemory, SpilledStream, mapped_tensor
from helixfold.model.config import ConfigError
from helixfold.model.update import Stream, as_tensor
from helixfold.ops.device_properties import is_simulated, properties_of

# Number of staging buffers of a stream. While one slab is computed, the previous one is written back, and the next one
# is read into its buffer.
SLOTS = 2
# Smaller streams, and streams with fewer channels (logits, errors), stay on the device, because they are read whole.
MIN_BYTES = 16 * 2**20
MIN_CHANNELS = 32


class Lane:
    """Two staging buffers (slots 0 and 1) for slabs of a spilled stream along dim 1, used in turn.

    Buffers are dense, with the stream's order of dims in memory. If slabs cross to another device, each slot also has a
    pinned host buffer, for slabs that are not dense in the stream's memory.
    """

    def __init__(self, stream: SpilledStream, size: int) -> None:
        """Allocate staging buffers for slabs of `size` rows."""
        tensor, home, device = stream.tensor, stream.home, stream.device
        # Earlier reads of the whole stream may have left pages in memory.
        home.release()
        self.stream, self._tensor, self._home = stream, tensor, home
        self._order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
        self._fetches = not home.blank
        self.crosses = home.crosses
        elements = tensor[:, :size].numel()
        slots = range(SLOTS if size < tensor.shape[1] else 1)
        pinned = self.crosses and device.type == "cuda"
        with counted_as_offloaded() if self.crosses else nullcontext():
            self._near = [tensor.new_empty(elements, pin_memory=pinned) for _ in slots]
        self._far = self._near
        if self.crosses:
            self._far = [torch.empty(elements, dtype=tensor.dtype, device=device) for _ in slots]

    def slab(self, slot: int, part: slice) -> Tensor:
        """Return the slab in a staging buffer, with dims in the stream's order; `part` is its range of rows."""
        dense = _shaped(self._far[slot], self._at_home(part))
        return dense.permute([self._order.index(each) for each in range(dense.ndim)])

    def fetch(self, slot: int, part: slice) -> None:
        """Read a slab of the stream into a staging buffer, and start copying it to the device if it is another.

        Do nothing if nothing has been written to the stream yet.
        """
        if not self._fetches:
            return
        slab = self._at_home(part)
        near = _shaped(self._near[slot], slab)
        if self.crosses and slab.is_contiguous():
            near = slab
        else:
            self._home.fetch(slab, near)
        if self.crosses:
            _shaped(self._far[slot], slab).copy_(near, non_blocking=True)

    def leave(self, slot: int, part: slice) -> None:
        """Start copying a computed slab from the device to the host."""
        if self.crosses:
            slab = self._at_home(part)
            near = slab if slab.is_contiguous() else _shaped(self._near[slot], slab)
            near.copy_(_shaped(self._far[slot], slab), non_blocking=True)

    def store(self, slot: int, part: slice) -> None:
        """Write a slab from the host buffer into the stream."""
        slab = self._at_home(part)
        if not (self.crosses and slab.is_contiguous()):
            self._home.store(slab, _shaped(self._near[slot], slab))

    def _at_home(self, part: slice) -> Tensor:
        """Return the slab in the memory of the stream, with dims in memory order."""
        return self._tensor[:, part].permute(self._order)


def visited(
    lanes: Sequence[Lane], changed: Sequence[Lane], parts: Sequence[slice], device: torch.device
) -> Iterator[tuple[slice, int]]:
    """Yield each range of rows in `parts` and the slot that holds its slabs in every lane, on the device.

    Slabs of the `changed` lanes are written back afterwards. A slab is valid until the next range is requested. If the
    caller stops early, its last slab is not written back.
    """
    module = torch.get_device_module(device)
    copying = module.Stream(device)
    # Work that was submitted earlier may still use the memory of the buffers.
    copying.wait_stream(module.current_stream(device))
    fetched, computed = ([module.Event() for _ in range(SLOTS)] for _ in range(2))

    def wait_for_copies() -> None:
        """Wait until all copies that were submitted to the copying stream are finished."""
        event = module.Event()
        event.record(copying)
        event.synchronize()

    def turn_over(slot: int, old: slice | None, new: slice | None) -> None:
        """Write the computed slab `old` of a slot back, and read the slab `new` into it; None: do not."""
        with module.stream(copying):
            computed[slot].wait(copying)
            if old is not None:
                for lane in changed:
                    lane.leave(slot, old)
            wait_for_copies()
            if old is not None:
                for lane in changed:
                    lane.store(slot, old)
            if new is not None:
                for lane in lanes:
                    lane.fetch(slot, new)
                fetched[slot].record(copying)

    # One thread, so that a buffer is written back before the next slab is read into it. Leaving the block waits for it.
    with ThreadPoolExecutor(1) as worker:
        try:
            job = worker.submit(turn_over, 0, None, parts[0])
            for index, part in enumerate(parts):
                slot = index % SLOTS
                job.result()
                before = parts[index - 1] if index else None
                after = parts[index + 1] if index + 1 < len(parts) else None
                job = worker.submit(turn_over, (index + 1) % SLOTS, before, after)
                fetched[slot].wait(module.current_stream(device))
                yield part, slot
                computed[slot].record(module.current_stream(device))
            job.result()
            worker.submit(turn_over, slot, parts[-1], None).result()
        finally:
            worker.shutdown()
            wait_for_copies()


def _shaped(buffer: Tensor, like: Tensor) -> Tensor:
    """Return the first elements of a buffer in the shape of `like`."""
    return buffer[: like.numel()].view(like.shape)


class Spilled(Slabs):
    """`Slabs` executor with streams on a disk or in host memory, for a device with little memory.

    The device holds one context and a few slabs at a time. Streams that `map_rows` makes are spilled. On a CPU each is
    an unnamed file in `directory`, as large as the stream and deleted with it. Every update reads its stream twice and
    writes it once while it computes. The system caches these files as far as its memory allows. On a GPU streams are in
    pinned host memory, which has been tested with the CPU as the device, but not yet on a GPU.

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
            raise ConfigError(f"streams must be spilled to an existing directory, got {directory}")
        self._device = torch.device(device)

    def room(self, like: Tensor, shape: Sequence[int]) -> LocalStream:
        if len(shape) < 4 or shape[-1] < MIN_CHANNELS or prod(shape) * like.element_size() < MIN_BYTES:
            return super().room(like, shape)
        return self._stream(shape, like.dtype)

    def staged(self, stream: Stream) -> int:
        if not isinstance(stream, SpilledStream):
            return 0
        b, _, *rest = stream.shape
        return SLOTS * b * prod(rest) * stream.dtype.itemsize

    def visited(
        self, streams: Sequence[LocalStream], size: int, changed: LocalStream | None = None
    ) -> Iterator[tuple[slice, list[Tensor], Tensor | None]]:
        lanes: list[Lane] = []

        def lane_of(stream: LocalStream | None) -> Lane | None:
            same = (lane for lane in lanes if isinstance(stream, SpilledStream) and stream.same_rows(lane.stream))
            return next(same, None)

        def slab(stream: LocalStream, slot: int, part: slice) -> Tensor:
            lane = lane_of(stream)
            return as_tensor(stream[:, part]) if lane is None else lane.slab(slot, part)

        for stream in streams if changed is None else [*streams, changed]:
            # A stream that is both read and changed is staged once.
            if isinstance(stream, SpilledStream) and lane_of(stream) is None:
                lanes.append(Lane(stream, size))
        parts = [*row_slices(streams[0].shape[1], size)]
        if lanes and not is_simulated():
            slots = visited(lanes, [lane for lane in lanes if lane is lane_of(changed)], parts, self._device)
        else:
            slots = ((part, 0) for part in parts)
        for part, slot in slots:
            slabs = [slab(each, slot, part) for each in streams]
            yield part, slabs, None if changed is None else slab(changed, slot, part)

    def _stream(self, shape: Sequence[int], dtype: torch.dtype) -> SpilledStream:
        """Return uninitialised memory for a stream in a file, in host memory, or in a simulation."""
        if is_simulated():
            with counted_as_offloaded():
                tensor = torch.empty(shape, dtype=dtype, device="meta")
            return SpilledStream(tensor, HostMemory(crosses=properties_of(tensor.device).kind != "cpu"), tensor.device)
        if self._device.type != "cpu":
            return SpilledStream(torch.empty(shape, dtype=dtype, pin_memory=True), HostMemory(), self._device)
        tensor, file = mapped_tensor(self.directory, shape, dtype)
        return SpilledStream(tensor, file, self._device)
