"""Time of collectives over the links between ranks, as a function of the bytes sent."""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist

from helixfold.execution.stages import mean_seconds
from helixfold.parallel.collectives import Channel, Kind
from helixfold.parallel.mesh import Group, Mesh

# Sizes of measured messages in bytes, which are typical for blocks.
_MESSAGE_BYTES = (2**14, 2**18, 2**22)
_READINGS, _CALLS = 5, 8
# Computation between two messages, as in a block of a short crop. Meanwhile idle threads and cores sleep and ranks
# drift apart, so that a message takes more than twice as long as directly after another one.
_PAUSE_SECONDS = 2e-3  # seconds
_MATRIX_SIDE = 256
_MIN_MESSAGE_SECONDS = 1e-6  # of a message
# Minimum seconds of a measurement: shorter work is repeated. The shorter of two measurements counts, because other
# programs on the same cores can only slow one down.
_MIN_READING = 0.01


_Collective = Kind | Literal["all_reduce"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """Time in seconds as a linear function of a size in bytes: `fixed + slope * size`."""

    fixed: float = 0.0
    slope: float = 0.0

    def at(self, size: float) -> float:
        """Return the seconds for a size in bytes."""
        return self.fixed + self.slope * size

    @classmethod
    def through(cls, readings: Mapping[float, float]) -> "Line":
        """Fit a line to measurements (seconds by size in bytes) with minimum relative errors.

        No coefficient is negative. For a single size, the slope is 0.
        """
        sizes, seconds = (np.array(each) for each in zip(*readings.items(), strict=True))
        x, y = (float(np.average(each, weights=seconds**-2.0)) for each in (sizes, seconds))
        slope = float(np.polyfit(sizes, seconds, 1, w=1 / seconds)[0]) if len(sizes) > 1 else 0.0
        slope = min(max(0.0, slope), y / x)
        return cls(fixed=max(0.0, y - slope * x), slope=slope)


@dataclass(frozen=True, kw_only=True)
class Links:
    """Time of each collective over one kind of link, as a function of the bytes that a rank sends."""

    all_to_all: Line = Line()
    all_gather: Line = Line()
    reduce_scatter: Line = Line()
    all_reduce: Line = Line()

    def at(self, kind: _Collective, size: float) -> float:
        """Return the seconds of a collective in which a rank sends `size` bytes.

        An exchange between two ranks has no line of its own and counts as an all-to-all.
        """
        line: Line = getattr(self, kind, self.all_to_all)
        return line.at(size)


def measured_links(mesh: Mesh, group: Group) -> Links:
    """Measure each collective within this rank's group, and return the lines that the mesh's first rank measured.

    All ranks of the mesh must call this together, and all get the same result.
    """
    channel = Channel(group)

    def exchange(kind: Kind, tensor: torch.Tensor) -> None:
        channel.start(kind, tensor, 0)[1].wait()

    n, lines = group.size, dict[str, Line]()
    kinds: tuple[_Collective, ...] = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce")
    for kind in kinds:
        readings: dict[float, float] = {}
        for size in _MESSAGE_BYTES:
            part = torch.zeros(size // 4, device=mesh.device)
            whole = torch.zeros(n, size // 4, device=mesh.device)
            if kind == "all_reduce":
                send = partial(dist.all_reduce, whole, group=group.handle)
                readings[all_reduce_bytes(whole.nbytes, n)] = _seconds(send, mesh)
            else:
                send = partial(exchange, kind, part if kind == "all_gather" else whole)
                readings[(n - 1) * part.nbytes] = _seconds(send, mesh)
        lines[kind] = Line.through(readings)
    return Links(**mesh.broadcast(lines))


def all_reduce_bytes(size: int, ranks: int) -> float:
    """Return the bytes that each of `ranks` ranks sends in a ring all-reduce of a tensor of `size` bytes."""
    return 2 * size * (ranks - 1) / ranks


def min_seconds(action: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call: the shorter of two measurements, after warm-up calls.

    A measurement is the mean of as many calls as take a hundredth of a second.
    """
    action()
    times = max(1, math.ceil(_MIN_READING / mean_seconds(action, 1, device)))
    return min(mean_seconds(action, times, device) for _ in range(2))


def _seconds(send: Callable[[], object], mesh: Mesh) -> float:
    """Return the seconds that a message adds to the surrounding computation, the median of several measurements.

    Every rank makes the same number of calls.
    """
    matrix = torch.zeros(_MATRIX_SIDE, _MATRIX_SIDE, device=mesh.device)
    times = mesh.broadcast(math.ceil(_PAUSE_SECONDS / min_seconds(partial(torch.mm, matrix, matrix), mesh.device)))

    def work() -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    def both() -> None:
        work()
        send()

    def reading(action: Callable[[], None]) -> float:
        mesh.barrier()
        return mean_seconds(action, _CALLS, mesh.device)

    reading(both)
    added = statistics.median(reading(both) - reading(work) for _ in range(_READINGS))
    # The difference of two measurements may be zero or negative, but the time of a message cannot.
    return max(added, _MIN_MESSAGE_SECONDS)
