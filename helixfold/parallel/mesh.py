"""Processes that work together: their place among the others, and the few things that they tell each other.

There is one process for each device. `torchrun` starts them and starts them again after a failure; without it a
process is alone, and everything here costs nothing.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from einops import rearrange
from torch import Tensor
from torch.distributed.distributed_c10d import _set_pg_timeout

from data_pipeline.errors import InputError
from helixfold.execution.device import pick_device
from helixfold.parallel.layout import Layout
from helixfold.parallel.rendezvous import rendezvous_store

# A collective that takes longer than this has lost a rank.
TIMEOUT = 600.0  # seconds
# While they meet, ranks wait at least so long: programs take their time to begin, on busy machines more than on others.
_MEETING = 60.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Group:
    """Some ranks that talk to each other, and this one's place among them.

    `handle` is None for a rank that is alone, and for one whose other ranks are pretended: collectives then send
    nothing, and are counted.
    """

    rank: int = 0
    size: int = 1
    handle: dist.ProcessGroup | None = None

    @property
    def has_collectives(self) -> bool:
        """Return whether collectives are called: in a group of several ranks, or of one that was made with them."""
        return self.size > 1 or self.handle is not None


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """This process's place among those that work together: in their world, and along the axes of the layout.

    `data` are the ranks that have the same place in other samples' groups, `sample` all that share this rank's sample;
    `branch` and `axial` are the axes of those.
    """

    rank: int
    size: int
    device: torch.device
    timeout: float = TIMEOUT  # seconds that a rank waits for another within a group
    layout: Layout = field(default_factory=Layout)
    world: Group = field(default_factory=Group)
    data: Group = field(default_factory=Group)
    branch: Group = field(default_factory=Group)
    axial: Group = field(default_factory=Group)
    sample: Group = field(default_factory=Group)

    @classmethod
    def alone(cls, device: torch.device | str = "cpu", *, collectives: bool = False) -> "Mesh":
        """Return the mesh of this process alone.

        With `collectives` it goes through all of them nevertheless, as a group of one, so that one device can test
        them; `leave` ends that.
        """
        place, group = torch.device(device), Group()
        if collectives:
            backend = "nccl" if place.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
            group = Group(handle=dist.group.WORLD)
        return cls(rank=0, size=1, device=place, world=group, data=group, branch=group, axial=group, sample=group)

    @classmethod
    def simulated(cls, layout: Layout, branch_rank: int = 0, device: torch.device | str = "meta") -> "Mesh":
        """Return the mesh of one rank of a layout whose other ranks are not there.

        The model then computes this rank's share, and what it would send is counted: for forecasts, on the meta device,
        and for readings of time. The ranks of a sample have equal shares but for their branch.
        """
        return cls(
            rank=branch_rank * layout.dap,
            size=layout.ranks,
            device=torch.device(device),
            layout=layout,
            branch=Group(rank=branch_rank, size=layout.bp),
            axial=Group(size=layout.dap),
            sample=Group(rank=branch_rank * layout.dap, size=layout.sharing),
        )

    @property
    def is_first(self) -> bool:
        """Return whether this is the rank that writes what only one may write."""
        return self.rank == 0

    def micro_batches(self, count: int) -> range:
        """Return which of a step's `count` equal parts this rank works on, with those that share its sample.

        Where they cannot be shared equally, some ranks have one more than others.
        """
        rank, size = self.data.rank, self.data.size
        return range(rank * count // size, (rank + 1) * count // size)

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace the tensor by its sum over all ranks."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.world.handle)

    def broadcast(self, value: Any) -> Any:
        """Return the first rank's value, plain data, on every rank."""
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, group=self.world.handle, group_src=0)
        return values[0]

    def all_gather(self, value: Any) -> list[Any]:
        """Return every rank's value, plain data, in the order of ranks, on every rank."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, group=self.world.handle)
        return values

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            dist.barrier(group=self.world.handle)


def join(device: str = "auto", layout: str | None = None, timeout: float = TIMEOUT, *, any_dp: bool = False) -> Mesh:
    """Meet the other processes that `torchrun` started; alone if this process was started without it.

    On GPUs each process takes the one of its number on its machine and they talk over NCCL, else over gloo. Without a
    layout all ranks are replicas. Whoever waits longer than `timeout` for another, in seconds, ends with an error.
    With `any_dp`, on the first rank, there are as many groups as there are ranks for, whatever dp the layout has.
    """
    if not dist.is_torchelastic_launched():
        if layout is not None:
            Layout.parse(layout, 1, any_dp=any_dp)
        return Mesh.alone(pick_device(device))
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"under torchrun --device is auto, cpu or cuda, got {device!r}; each process takes its own")
    # gloo beside NCCL: training state is written from the processor's memory.
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    meeting = timedelta(seconds=max(timeout, _MEETING))
    store, rank, size = rendezvous_store(meeting)
    dist.init_process_group(backend=backend, store=store, rank=rank, world_size=size, timeout=meeting)
    place = torch.device("cpu")
    if on_gpu:
        place = pick_device(f"cuda:{dist.get_node_local_rank()}")
        torch.cuda.set_device(place)
    if layout is None:
        return make_mesh(Layout(dp=size), place, timeout)
    freely = torch.tensor(int(any_dp), device=place)
    dist.broadcast(freely, src=0)
    return make_mesh(Layout.parse(layout, size, any_dp=bool(freely)), place, timeout)


def make_mesh(layout: Layout, device: torch.device, timeout: float = TIMEOUT) -> Mesh:
    """Return the mesh of all ranks of the process group that there is."""
    rank, size = dist.get_rank(), dist.get_world_size()
    numbers = torch.arange(size).view(layout.dp, layout.bp, layout.dap)

    def along(pattern: str) -> Group:
        return own_group(rearrange(numbers, pattern).tolist(), timeout)

    mesh = Mesh(
        rank=rank,
        size=size,
        device=device,
        timeout=timeout,
        layout=layout,
        world=Group(rank=rank, size=size, handle=dist.group.WORLD),
        data=along("dp bp dap -> (bp dap) dp"),
        branch=along("dp bp dap -> (dp dap) bp"),
        axial=along("dp bp dap -> (dp bp) dap"),
        sample=along("dp bp dap -> dp (bp dap)"),
    )
    set_timeout(timeout, mesh.world, mesh.data, mesh.branch, mesh.axial, mesh.sample)
    return mesh


def own_group(rows: list[list[int]], timeout: float) -> Group:
    """Return the group that this rank is in, of those given by ranks of the world; alone if it is in none.

    Every rank calls this with the same rows, as all of them make all groups, and then `set_timeout`.
    """
    rank, own, meeting = dist.get_rank(), Group(), timedelta(seconds=max(timeout, _MEETING))
    for ranks in rows:
        handle = dist.new_group(ranks, timeout=meeting) if len(ranks) > 1 else None
        if rank in ranks:
            own = Group(rank=ranks.index(rank), size=len(ranks), handle=handle)
    return own


def set_timeout(timeout: float, *groups: Group) -> None:
    """Set how many seconds ranks wait for each other in these groups, from when all ranks have made them."""
    dist.barrier()
    for group in groups:
        if group.handle is not None:
            _set_pg_timeout(timedelta(seconds=timeout), group.handle)


def leave() -> None:
    """Part from the other processes, if there are any."""
    if dist.is_initialized():
        dist.destroy_process_group()
