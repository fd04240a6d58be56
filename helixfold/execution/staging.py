"""Slabs of tensors that live elsewhere, brought to where they are computed with while others are computed."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import Tensor

from helixfold.execution.counter import held_elsewhere
from helixfold.execution.spilled_stream import SpilledStream

# One slab is computed while another is written back and, in its place, the next one is read.
SLOTS = 2


class Lane:
    """One stream's slabs, cut along dim 1, in two staging buffers in turn.

    Buffers are dense in the stream's own order of dims, transposed or not. Where the home is another device's memory
    there is a pinned host buffer beside each, through which slabs go that are not dense there.
    """

    def __init__(self, stream: SpilledStream, size: int) -> None:
        tensor, home, device = stream.tensor, stream.home, stream.device
        # Pages that were used whole are given back.
        home.release()
        self.stream, self._tensor, self._home = stream, tensor, home
        self._order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
        self._fetches = not home.blank
        self.crosses = home.crosses
        elements = tensor[:, :size].numel()
        slots = range(SLOTS if size < tensor.shape[1] else 1)
        pinned = self.crosses and device.type == "cuda"
        with held_elsewhere() if self.crosses else nullcontext():
            self._near = [tensor.new_empty(elements, pin_memory=pinned) for _ in slots]
        self._far = self._near
        if self.crosses:
            self._far = [torch.empty(elements, dtype=tensor.dtype, device=device) for _ in slots]

    def slab(self, slot: int, part: slice) -> Tensor:
        """Return what is in a staging buffer, with the tensor's dims."""
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
        """Start to bring a slab that has been computed back to the host."""
        if self.crosses:
            slab = self._at_home(part)
            near = slab if slab.is_contiguous() else _shaped(self._near[slot], slab)
            near.copy_(_shaped(self._far[slot], slab), non_blocking=True)

    def store(self, slot: int, part: slice) -> None:
        """Write a slab home once it is back on the host."""
        slab = self._at_home(part)
        if not (self.crosses and slab.is_contiguous()):
            self._home.store(slab, _shaped(self._near[slot], slab))

    def _at_home(self, part: slice) -> Tensor:
        return self._tensor[:, part].permute(self._order)


def visited(
    lanes: Sequence[Lane], changed: Sequence[Lane], parts: Sequence[slice], device: torch.device
) -> Iterator[tuple[slice, int]]:
    """Give the parts in order, each with its slabs' slot in every lane; those of `changed` are written back afterwards.

    A slab is there until the next part is asked for. When the consumer leaves early, the slab that it had is dropped
    and those before are written.
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

    # One thread, so that what is in a buffer has been written before it is read into; leaving waits for it.
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
