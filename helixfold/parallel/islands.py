"""Islands: groups of ranks with fast links within and slow links between them, which communicate rarely."""

import json
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from data_pipeline.io.config import ConfigError
from helixfold.parallel.mesh import Mesh, make_group, set_timeout

# Timeout of collectives between islands, because faster islands wait until the slowest one has finished its steps.
ISLAND_TIMEOUT = 3600.0  # seconds


@dataclass(kw_only=True)
class Islands:
    """The islands of a mesh, from the view of one rank.

    `index` is the index of this rank's island, and `count` the number of islands. `within` is the mesh of this rank's
    island, and `waiting` the same mesh with a timeout for data from other islands. `between` is the mesh of the first
    rank of each island; only these communicate between islands. All ranks of an island must pass the same value to a
    collective between islands.

    `sent` and `gathered` count the bytes that this island sent to other islands: in all-reduce and all-gather, counted
    on its first rank, and in `gather` to the first island.
    """

    index: int
    count: int
    within: Mesh
    waiting: Mesh
    between: Mesh
    sent: int = 0
    gathered: int = 0

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor in place by its sum over the islands, equal bit for bit on all ranks of all islands.

        With a single island, nothing changes.
        """
        if self.count == 1:
            return
        if self.within.is_first:
            self.between.all_reduce(tensor)
            self.sent += self.all_reduce_bytes(tensor.nbytes)
        if self.within.size > 1:
            dist.broadcast(tensor, group=self.waiting.world.handle, group_src=0)

    def all_reduce_bytes(self, size: int) -> int:
        """Return the bytes that one island sends in a ring all-reduce of `size` bytes."""
        return 2 * size * (self.count - 1) // self.count

    def all_gather(self, item: Any) -> list[Any]:
        """Return the JSON-compatible values of all islands in order, on every rank.

        `item` is the value of this rank's island.
        """
        if self.count == 1:
            return [item]
        values: list[Any] = []
        if self.within.is_first:
            values = self.between.all_gather(item)
            self.sent += self.all_reduce_bytes(sum(len(json.dumps(item)) for item in values))
        return list(self.waiting.broadcast(values))

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all islands on the CPU, stacked along a new first dim, on the mesh's first rank.

        Other ranks return their own tensor. With a single island, the tensor is returned unchanged, without a new dim.
        """
        if self.count == 1 or not self.within.is_first:
            return tensor
        own, is_first = tensor.detach().cpu(), self.between.is_first
        rows = torch.empty(self.count, *own.shape, dtype=own.dtype) if is_first else own
        dist.gather(own, list(rows) if is_first else None, group=self.between.world.handle, group_dst=0)
        self.gathered += own.nbytes
        return rows


def make_islands(mesh: Mesh, count: int) -> Islands:
    """Divide the data-parallel groups of a mesh into `count` islands; all ranks must call this.

    Raise `ConfigError` if `count` does not divide dp.
    """
    if count == 1:
        return Islands(index=0, count=1, within=mesh, waiting=mesh, between=Mesh.alone(mesh.device))
    layout = mesh.layout
    if layout.dp % count:
        raise ConfigError(
            f"outer.islands={count} must divide dp, the number of groups with their own samples, got {layout}; "
            "start more ranks, or set outer.islands to a divisor of dp"
        )
    own = replace(layout, dp=layout.dp // count)
    ranks = torch.arange(mesh.size)
    of_islands, of_samples = ranks.view(count, -1), ranks.view(count, own.dp, own.sharing)
    timeout = mesh.timeout
    world, waiting = (make_group(of_islands.tolist(), timeout) for _ in range(2))
    data = make_group(of_samples.movedim(1, 2).flatten(0, 1).tolist(), timeout)
    leaders = make_group([of_islands[:, 0].tolist()], timeout)
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
