"""Copies of spilled streams' slabs to the computing device and back, which overlap with computation."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import Tensor

from helixfold.execution.counter import counted_as_offloaded
from helixfold.execution.spilled_stream import SpilledStream

# One slab is computed while another is written back and, in its place, the next one is read.
SLOTS = 2


class Lane:
    """Slabs of one spilled stream, along dim 1, in two staging buffers that are used in turn (slots 0 and 1).

    Buffers are dense in the order in which the stream's dims are in memory. If slabs cross to another device, each
    buffer has a pinned host buffer beside it, for slabs that are not dense in the stream's memory.
    """

    def __init__(self, stream: SpilledStream, size: int) -> None:
        tensor, home, device = stream.tensor, stream.home, stream.device
        # An earlier use of the whole stream may have left pages in memory.
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
        """Return the slab in a staging buffer, with dims in the stream's order; `part` are its rows."""
        dense = _shaped(self._far[slot], self._at_home(part))
        return dense.permute([self._order.index(each) for each in range(dense.ndim)])

    def fetch(self, slot: int, part: slice) -> None:
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
        """Start to copy a computed slab from the device back to the host."""
        if self.crosses:
            slab = self._at_home(part)
            near = slab if slab.is_contiguous() else _shaped(self._near[slot], slab)
            near.copy_(_shaped(self._far[slot], slab), non_blocking=True)

    def store(self, slot: int, part: slice) -> None:
        """Write a slab into the stream once it is back on the host."""
        slab = self._at_home(part)
        if not (self.crosses and slab.is_contiguous()):
            self._home.store(slab, _shaped(self._near[slot], slab))

    def _at_home(self, part: slice) -> Tensor:
        return self._tensor[:, part].permute(self._order)


def visited(
    lanes: Sequence[Lane], changed: Sequence[Lane], parts: Sequence[slice], device: torch.device
) -> Iterator[tuple[slice, int]]:
    """Yield each range of rows in `parts` and the slot of its slabs in every lane, once they are on the device.

    Slabs of the `changed` lanes are written back afterwards. A slab is valid until the next range is requested. If the
    caller stops early, its last slab is dropped, and earlier ones are written.
    """
    module = torch.get_device_module(device)
    copying = module.Stream(device)
    # Buffers may be memory that work submitted earlier still uses.
    copying.wait_stream(module.current_stream(device))
    fetched, computed = ([module.Event() for _ in range(SLOTS)] for _ in range(2))

    def wait_for_copies() -> None:
        done = module.Event()
        done.record(copying)
        done.synchronize()

    def turn_over(slot: int, old: slice | None, new: slice | None) -> None:
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

    # One thread, so that a buffer is written back before the next slab is read into it; leaving waits for the thread.
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
    return buffer[: like.numel()].view(like.shape)
