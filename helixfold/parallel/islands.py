"""Ranks in islands: near each other within, far apart between. What crosses is rare, crosses once, and is counted."""

import json
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from data_pipeline.config import ConfigError
from helixfold.parallel.mesh import Mesh, own_group, set_timeout

# Islands need not be equally fast: those that are done with their steps wait for the slowest.
ISLAND_TIMEOUT = 3600.0  # seconds


@dataclass(kw_only=True)
class Islands:
    """The islands of a mesh, as a rank sees them.

    `within` is this island as a mesh of its own, and `waiting` the same with the timeout for what comes from afar;
    `between` are the islands' first ranks, on those ranks, and only they talk to other islands. What goes between
    islands is the same on all ranks of each.
    """

    index: int
    count: int
    within: Mesh
    waiting: Mesh
    between: Mesh
    sent: int = 0  # bytes from each island to others in sums and gathering, counted on its first rank
    gathered: int = 0  # and in stacks, from each island but the first to that

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the islands, the same to the bit on all ranks."""
        if self.count == 1:
            return
        if self.within.is_first:
            self.between.all_reduce(tensor)
            self.sent += self.sent_by_sum(tensor.nbytes)
        if self.within.size > 1:
            dist.broadcast(tensor, group=self.waiting.world.handle, group_src=0)

    def sent_by_sum(self, size: int) -> int:
        """Return the bytes that one island sends when so many are summed over all: each part goes round twice."""
        return 2 * size * (self.count - 1) // self.count

    def all_gather(self, value: Any) -> list[Any]:
        """Every island's value, plain data as JSON has it, on every rank."""
        if self.count == 1:
            return [value]
        everyone: list[Any] = []
        if self.within.is_first:
            everyone = self.between.all_gather(value)
            self.sent += self.sent_by_sum(sum(len(json.dumps(each)) for each in everyone))
        values: list[Any] = self.waiting.broadcast(everyone)
        return values

    def gather(self, tensor: Tensor) -> Tensor:
        """Every island's tensor along a new first dimension, in the processor's memory, on the first rank of all.

        On the other ranks it comes back as it is.
        """
        if self.count == 1 or not self.within.is_first:
            return tensor
        own, is_first = tensor.detach().cpu(), self.between.is_first
        rows = torch.empty(self.count, *own.shape, dtype=own.dtype) if is_first else own
        dist.gather(own, list(rows) if is_first else None, group=self.between.world.handle, group_dst=0)
        self.gathered += own.nbytes
        return rows


def make_islands(mesh: Mesh, count: int) -> Islands:
    """Cut the samples' groups of a mesh into so many islands; all ranks call this."""
    if count == 1:
        return Islands(index=0, count=1, within=mesh, waiting=mesh, between=Mesh.alone(mesh.device))
    layout = mesh.layout
    if layout.dp % count:
        raise ConfigError(
            f"outer.islands={count} must divide dp, the groups of ranks with samples of their own, in {layout}; "
            "start more ranks, or set outer.islands to a divisor of dp"
        )
    own = replace(layout, dp=layout.dp // count)
    ranks = torch.arange(mesh.size)
    of_islands, of_samples = ranks.view(count, -1), ranks.view(count, own.dp, own.sharing)
    timeout = mesh.timeout
    world, waiting = (own_group(of_islands.tolist(), timeout) for _ in range(2))
    data = own_group(of_samples.movedim(1, 2).flatten(0, 1).tolist(), timeout)
    leaders = own_group([of_islands[:, 0].tolist()], timeout)
    set_timeout(timeout, world, data)
    set_timeout(ISLAND_TIMEOUT, waiting, leaders)
    within = replace(mesh, rank=world.rank, size=world.size, layout=own, world=world, data=data)
    return Islands(
        index=mesh.rank // own.ranks,
        count=count,
        within=within,
        waiting=replace(within, world=waiting),
        between=Mesh(rank=leaders.rank, size=leaders.size, device=mesh.device, world=leaders),
    )
