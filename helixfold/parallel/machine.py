"""What a machine can do: how long updates take on one of its devices, and messages between several."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from helixfold.parallel.work import UpdateWork


@dataclass(frozen=True, kw_only=True)
class Line:
    """Seconds that grow evenly with a size: `fixed` even for nothing, `slope` for each unit more."""

    fixed: float
    slope: float

    def at(self, size: float) -> float:
        return self.fixed + self.slope * size

    @classmethod
    def through(cls, readings: Mapping[float, float]) -> "Line":
        """The line nearest to seconds by size, by their relative errors; neither part is negative."""
        # Least squares with weights 1 / seconds^2, by hand: there are two or three readings.
        weights = [(1 / seconds**2, size, seconds) for size, seconds in readings.items()]
        w = sum(weight for weight, _, _ in weights)
        x = sum(weight * size for weight, size, _ in weights) / w
        y = sum(weight * seconds for weight, _, seconds in weights) / w
        spread = sum(weight * (size - x) ** 2 for weight, size, _ in weights)
        slope = sum(weight * (size - x) * (seconds - y) for weight, size, seconds in weights) / spread if spread else 0
        slope = max(0.0, slope)
        if y - slope * x < 0:
            slope = y / x
        return cls(fixed=max(0.0, y - slope * x), slope=slope)


@dataclass(frozen=True, kw_only=True)
class Links:
    """Seconds of a collective by the bytes that a rank sends in it, over one kind of link."""

    exchange: Line  # all-to-all, and a swap between two
    gather: Line  # all-gather
    scatter: Line  # reduce-scatter, what goes back where something was gathered
    reduce: Line  # all-reduce


class Speeds(Protocol):
    """How long one device takes for the parts of a step."""

    def update(self, stack: str, name: str, work: UpdateWork, share: float, *, learns: bool) -> float:
        """Seconds of an update on a share of its stream: forward without gradients, or forward and backward."""
        ...

    def rest(self, share: float, *, learns: bool) -> float:
        """Seconds of all of a pass that is in no stack, where streams are made on a share of their rows: embedders,
        structure module, and where it learns, heads, losses and their gradients.
        """
        ...

    def optimizer(self, parameters: int) -> float:
        """Seconds of a step of the optimizer."""
        ...


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Devices of one kind, some of them closer to each other.

    `memory` is what a rank may take, in bytes. `overlaps` says whether gradients are summed while others are computed
    without either taking longer: so on GPUs, while on a CPU both are done by the same cores.
    """

    name: str
    speeds: Speeds
    memory: int
    per_node: int
    near: Links  # within a node
    far: Links
    overlaps: bool

    def links(self, ranks: int) -> Links:
        """Between so many ranks that follow each other."""
        return self.near if ranks <= self.per_node else self.far
