"""The mesh of ranks: process groups along the axes of a parallel layout, and collectives over all ranks.

Each device has one process. `torchrun` starts the processes and restarts them after a failure. A process that was
started without it is a mesh of one rank, whose collectives do nothing.
"""

import json
import time
from dataclasses import dataclass, field
from datetime import timedelta
from math import prod
from typing import Annotated, Any
from uuid import uuid4

import torch
import torch.distributed as dist
from einops import rearrange
from torch import Tensor
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, Store, _set_pg_timeout
from torch.distributed.rendezvous import rendezvous

from data_pipeline.io.config import Bound, Checked, ConfigError, at_least
from data_pipeline.io.errors import InputError
from helixfold.execution.device import pick_device
from helixfold.model.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Layout(Checked):
    """Degrees of parallelism: `dp` groups compute different samples, and `bp` x `dap` ranks share a sample.

    `bp` is the degree of branch parallelism, 2 if the MSA half and the pair half of a block run on different ranks
    (HelixFold's parallel block). `dap` is the degree of dynamic axial parallelism, the number of shards of a stream.
    Consecutive ranks are neighbours along `dap` first, then `bp`, because these communicate most.
    """

    dp: Annotated[int, at_least(1)] = 1
    bp: Annotated[int, Bound("be 1 or 2, as a block has two branches", lambda degree: degree in (1, 2))] = 1
    dap: Annotated[int, at_least(1)] = 1

    @classmethod
    def parse(cls, text: str, ranks: int, *, any_dp: bool = False) -> "Layout":
        """Parse a layout such as "dp=16,bp=2,dap=2" for this number of ranks.

        Without dp in the text, or with `any_dp`, dp follows from the number of ranks. Raise `ConfigError` if the text
        is malformed or does not fit.
        """
        degrees: dict[str, int] = {}
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            if name not in ("dp", "bp", "dap") or name in degrees or not value.isdecimal():
                raise ConfigError(f"a layout must be like dp=16,bp=2,dap=2 with each name once, got {text!r}")
            degrees[name] = int(value)
        if any_dp:
            degrees.pop("dp", None)
        per_sample = cls(**{name: count for name, count in degrees.items() if name != "dp"})
        if "dp" not in degrees:
            if ranks % per_sample.ranks:
                raise ConfigError(
                    f"{ranks} rank{'s' * (ranks > 1)} cannot be divided into groups of {per_sample.ranks} ({text}); "
                    f"{_suggestions(ranks)}"
                )
            degrees["dp"] = ranks // per_sample.ranks
        layout = cls(**degrees)
        if layout.ranks != ranks:
            raise ConfigError(f"layout {layout} needs {layout.ranks} ranks, got {ranks}; {_suggestions(ranks)}")
        return layout

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return prod((self.dp, self.bp, self.dap))

    @property
    def sharing(self) -> int:
        """Number of ranks that share a sample."""
        return self.bp * self.dap

    def require_blocks(self, model: ModelConfig) -> None:
        """Raise `ConfigError` if the layout runs branches in parallel that depend on each other in this model."""
        for name, stack in (("evoformer", model.evoformer), ("extra_msa", model.extra_msa)):
            if self.bp > 1 and stack.blocks > 0 and stack.outer_product != "end":
                raise ConfigError(
                    f"bp={self.bp} needs blocks whose branches are independent, and {name}.outer_product is "
                    f"{stack.outer_product!r}; train with model.{name}.outer_product=end, or set bp=1"
                )

    def __str__(self) -> str:
        return f"dp={self.dp},bp={self.bp},dap={self.dap}"


def layouts(ranks: int, *, branches: bool, largest_dap: int = 16) -> list[Layout]:
    """Return all layouts of a number of ranks with dap up to `largest_dap`; bp=2 is included only with `branches`."""
    return [
        Layout(dp=ranks // (bp * dap), bp=bp, dap=dap)
        for bp in ((1, 2) if branches else (1,))
        for dap in range(1, min(ranks, largest_dap) + 1)
        if ranks % (bp * dap) == 0
    ]


def _suggestions(ranks: int) -> str:
    """Return the layouts of a number of ranks whose dap is a power of two, as text for an error message."""
    fitting = [layout for layout in layouts(ranks, branches=True) if layout.dap & (layout.dap - 1) == 0]
    return f"these fit: {'; '.join(str(layout) for layout in fitting)}"


_POLL_SECONDS = 0.05  # seconds between two looks at the store


def rendezvous_store(timeout: timedelta) -> tuple[Store, int, int]:
    """Return a store for the processes of this attempt only, the rank of this process, and the number of processes.

    The first rank announces the current processes under a new name. If another process is announced with the rank of
    this process, it waits for the next announcement. Raise `DistStoreError` if not all processes join in time.
    """
    store, rank, size = next(iter(rendezvous("env://", timeout=timeout)))
    deadline = time.monotonic() + timeout.total_seconds()
    own = uuid4().hex
    store.set(f"here/{rank}", own)
    name = _announce(store, size, deadline) if rank == 0 else _answer(store, rank, own, deadline)
    return PrefixStore(name, store), rank, size


def _announce(store: Store, size: int, deadline: float) -> str:
    """Announce the current processes on the first rank until all have answered; return the name of the announcement."""
    announced: list[str] = []
    name = ""
    while True:
        current_keys = [key.decode() for key in store.multi_get([f"here/{rank}" for rank in range(size)])]
        if current_keys != announced:
            name, announced = uuid4().hex, current_keys
            store.set("call", json.dumps({"name": name, "ranks": announced}))
        answers = [f"answer/{rank}" for rank in range(1, size)]
        if store.check(answers) and all(answer.decode() == name for answer in store.multi_get(answers)):
            store.set("begin", name)
            return name
        _wait(deadline)


def _answer(store: Store, rank: int, own: str, deadline: float) -> str:
    """Answer announcements that have `own`, the key of this process, at its rank.

    Return the name of the announcement with which the run begins.
    """
    while True:
        call = json.loads(store.get("call"))
        if call["ranks"][rank : rank + 1] == [own]:
            store.set(f"answer/{rank}", call["name"])
            if store.check(["begin"]) and store.get("begin").decode() == call["name"]:
                return str(call["name"])
        _wait(deadline)


def _wait(deadline: float) -> None:
    """Pause between two looks at the store; raise `DistStoreError` after the deadline."""
    if time.monotonic() > deadline:
        raise DistStoreError("a rank did not join in time")
    time.sleep(_POLL_SECONDS)


# After this time without a result, a rank of a collective counts as lost.
TIMEOUT = 600.0  # seconds
# Minimum timeout for creating process groups, because programs start at different times, above all on busy machines.
_SETUP_TIMEOUT = 60.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Group:
    """A process group from the view of one of its ranks.

    `rank` is the index of this process in the group. `handle` is None in a simulated group, whose collectives are
    counted but send nothing, and in a group of one that needs no process group.
    """

    rank: int = 0
    size: int = 1
    handle: dist.ProcessGroup | None = None

    @property
    def has_collectives(self) -> bool:
        """Whether collectives are called: with several ranks, or in a group of one that has a process group."""
        return self.size > 1 or self.handle is not None


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Process groups of this rank: the whole world, and one along each axis of the layout.

    `rank` is the index of this process among the `size` processes of `world`. `sample` has the ranks that share this
    rank's sample; `branch` and `axial` are subgroups of it. `data` has the ranks at the same position in the groups of
    all samples. `timeout` is the seconds that a rank waits in a collective.
    """

    rank: int
    size: int
    device: torch.device
    timeout: float = TIMEOUT
    layout: Layout = field(default_factory=Layout)
    world: Group = field(default_factory=Group)
    data: Group = field(default_factory=Group)
    branch: Group = field(default_factory=Group)
    axial: Group = field(default_factory=Group)
    sample: Group = field(default_factory=Group)

    @classmethod
    def alone(cls, device: torch.device | str = "cpu") -> "Mesh":
        """Return a mesh of this process only."""
        return cls(rank=0, size=1, device=torch.device(device))

    @classmethod
    def simulated(cls, layout: Layout, branch_rank: int = 0, device: torch.device | str = "meta") -> "Mesh":
        """Return the mesh of one rank of a layout whose other ranks do not run.

        The model computes this rank's part, and the bytes that it would send are counted. This is for estimates on the
        meta device and for measuring time. `branch_rank` is 0 for the MSA half of blocks and 1 for the pair half, if bp
        is 2. All ranks of a branch have equal parts.
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
        """Whether this is rank 0 of the mesh, which writes files and prints."""
        return self.rank == 0

    def micro_batches(self, count: int) -> range:
        """Return the indices of the micro-batches that this rank computes, out of the `count` of a step.

        Ranks that share a sample get the same indices. If `count` is not divisible, some ranks get one more than
        others.
        """
        rank, size = self.data.rank, self.data.size
        return range(rank * count // size, (rank + 1) * count // size)

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace the tensor in place by its sum over all ranks of the mesh."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.world.handle)

    def broadcast(self, value: Any) -> Any:
        """Return the value of the first rank, which must be picklable, on every rank."""
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, group=self.world.handle, group_src=0)
        return values[0]

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, which must be picklable, in order on every rank."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, group=self.world.handle)
        return values

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        if self.size > 1:
            dist.barrier(group=self.world.handle)


def join(device: str = "auto", layout: str | None = None, timeout: float = TIMEOUT, *, any_dp: bool = False) -> Mesh:
    """Join the processes that `torchrun` started and return the mesh; without `torchrun`, a mesh of one rank.

    GPUs communicate over NCCL, each process using the GPU of its local rank; CPUs communicate over gloo. Without a
    layout all ranks are data-parallel. A collective that takes longer than `timeout` seconds fails. If the first rank
    passes `any_dp`, dp follows from the number of ranks instead of the layout. Raise `ConfigError` if the layout does
    not fit the number of ranks, and `InputError` for a device that all ranks would share.
    """
    if not dist.is_torchelastic_launched():
        if layout is not None:
            Layout.parse(layout, 1, any_dp=any_dp)
        return Mesh.alone(pick_device(device))
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(
            f"under torchrun --device must be auto, cpu or cuda, got {device!r}; each process uses its own device"
        )
    # gloo in addition to NCCL, because training state is saved from CPU memory.
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    setup_timeout = timedelta(seconds=max(timeout, _SETUP_TIMEOUT))
    store, rank, size = rendezvous_store(setup_timeout)
    dist.init_process_group(backend=backend, store=store, rank=rank, world_size=size, timeout=setup_timeout)
    own_device = torch.device("cpu")
    if on_gpu:
        own_device = pick_device(f"cuda:{dist.get_node_local_rank()}")
    if layout is None:
        return make_mesh(Layout(dp=size), own_device, timeout)
    any_dp_flag = torch.tensor(int(any_dp), device=own_device)
    dist.broadcast(any_dp_flag, src=0)
    return make_mesh(Layout.parse(layout, size, any_dp=bool(any_dp_flag)), own_device, timeout)


def make_mesh(layout: Layout, device: torch.device, timeout: float = TIMEOUT) -> Mesh:
    """Return the mesh of all ranks of the default process group, divided by a layout; all ranks must call this."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ranks = torch.arange(size).view(layout.dp, layout.bp, layout.dap)

    def along(pattern: str) -> Group:
        return make_group(rearrange(ranks, pattern).tolist(), timeout)

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


def make_group(rows: list[list[int]], timeout: float) -> Group:
    """Create a process group for each row of ranks and return this rank's; a group of one if it is in no row.

    Every rank must call this with the same rows, and then `set_timeout`.
    """
    rank, own, setup_timeout = dist.get_rank(), Group(), timedelta(seconds=max(timeout, _SETUP_TIMEOUT))
    for ranks in rows:
        handle = dist.new_group(ranks, timeout=setup_timeout) if len(ranks) > 1 else None
        if rank in ranks:
            own = Group(rank=ranks.index(rank), size=len(ranks), handle=handle)
    return own


def set_timeout(timeout: float, *groups: Group) -> None:
    """Wait for all ranks, and then set the timeout of collectives in groups, in seconds.

    Call this on all ranks after they have created the groups.
    """
    dist.barrier()
    for group in groups:
        if group.handle is not None:
            _set_pg_timeout(timedelta(seconds=timeout), group.handle)


def leave() -> None:
    """Destroy the process groups, if this process has any."""
    if dist.is_initialized():
        dist.destroy_process_group()
