"""The machine at hand as a planner sees it: short readings of the links between ranks, and of a rank's device."""

import math
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from helixfold.config import ModelConfig
from helixfold.execution.memory import PassSize
from helixfold.execution.recompute import RecomputeConfig
from helixfold.parallel.collectives import Channel
from helixfold.parallel.layout import Layout
from helixfold.parallel.machine import Line, Links, Machine
from helixfold.parallel.mesh import Group, Mesh, divided
from helixfold.parallel.probe import least_seconds, measured_speeds
from helixfold.parallel.shard import Shard

# Bytes that each rank has at both ends of what blocks send.
_SIZES, _CHANNELS = (2**14, 2**18, 2**22), 32
_READINGS, _CALLS = 5, 8
# Between messages ranks compute, for so long in a block of a short crop: threads and cores that have nothing to do fall
# asleep, ranks drift apart, and a message takes more than twice as long as one in a row.
_PAUSE = 2e-3  # seconds
_WIDTH = 256
_LEAST = 1e-6  # seconds
_NOTHING = Line(fixed=0.0, slope=0.0)


def measured_machine(model: ModelConfig, size: PassSize, keep: RecomputeConfig, mesh: Mesh, memory: int) -> Machine:
    """What the ranks of this mesh run on; all of them must ask together. `memory` is what each may take, in bytes.

    All ranks work while they are measured, as they do in a step; each has the readings of its own device, and the first
    one's of the links.
    """
    hosts = mesh.gather(platform.node())
    per_node = min(hosts.count(host) for host in hosts)
    near = far = Links(exchange=_NOTHING, gather=_NOTHING, scatter=_NOTHING, reduce=_NOTHING)
    if mesh.size > 1:
        far = measured_links(mesh, mesh.world)
        near = far
        if 1 < per_node < mesh.size and mesh.size % per_node == 0:
            near = measured_links(mesh, divided(Layout(dp=mesh.size // per_node, dap=per_node), mesh.device).axial)
    mesh.barrier()
    return Machine(
        name="here",
        speeds=measured_speeds(model, size, keep, mesh.device),
        memory=memory,
        per_node=per_node,
        near=near,
        far=far,
        overlaps=mesh.device.type == "cuda",
    )


def measured_links(mesh: Mesh, group: Group) -> Links:
    """Of this rank's group; all ranks of the mesh must ask together, and all are told what the first one read."""
    exchange, gather, scatter, reduce = {}, {}, {}, {}
    channel = Channel(group)
    for size in _SIZES:
        # As streams are cut: as many rows as columns, so many for each rank.
        side = max(1, round((size / 4 / _CHANNELS) ** 0.5 / group.size))
        stream = torch.zeros(1, side, side * group.size, _CHANNELS, device=mesh.device)
        context, gradient = torch.zeros_like(stream), torch.zeros(stream.numel() * group.size, device=mesh.device)
        others = (group.size - 1) / group.size  # of what there is
        exchange[others * stream.nbytes] = _seconds(partial(_exchange, channel, stream), mesh)
        gather[others * gradient.nbytes] = _seconds(partial(_gather, channel, context), mesh)
        scatter[others * gradient.nbytes] = _seconds(partial(_scatter, channel, gradient), mesh)
        reduce[2 * others * gradient.nbytes] = _seconds(partial(dist.all_reduce, gradient, group=group.handle), mesh)
    lines = [Line.through(readings) for readings in (exchange, gather, scatter, reduce)]
    told = [Line(fixed=fixed, slope=slope) for fixed, slope in mesh.broadcast([[e.fixed, e.slope] for e in lines])]
    return Links(exchange=told[0], gather=told[1], scatter=told[2], reduce=told[3])


def _exchange(channel: Channel, local: torch.Tensor) -> None:
    """With what puts the parts in order, as it is done in a block."""
    b, rows, columns, c = local.shape
    Shard(channel, torch.Size((b, rows * channel.group.size, columns, c)), local, 1).along(2)


def _gather(channel: Channel, local: torch.Tensor) -> None:
    torch.cat(channel.gather(local).wait().unbind(), 1)


def _scatter(channel: Channel, whole: torch.Tensor) -> None:
    # Parts of what was gathered side by side lie one after another.
    parts = torch.stack(whole.view(-1, channel.group.size, _CHANNELS).unbind(1))
    _, work = channel.start("reduce_scatter", parts, root=0)
    work.wait()


def _seconds(send: Callable[[], object], mesh: Mesh) -> float:
    """What a call adds to the work that it comes between, the median of some readings; as many calls on every rank."""
    matrix = torch.zeros(_WIDTH, _WIDTH, device=mesh.device)
    times = mesh.broadcast(math.ceil(_PAUSE / least_seconds(partial(torch.mm, matrix, matrix), mesh.device)))

    def work() -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    def both() -> None:
        work()
        send()

    def reading(action: Callable[[], None]) -> float:
        mesh.barrier()
        start = time.perf_counter()
        for _ in range(_CALLS):
            action()
        if mesh.device.type == "cuda":
            torch.cuda.synchronize(mesh.device)
        return (time.perf_counter() - start) / _CALLS

    reading(both)
    without, found = (statistics.median(reading(action) for _ in range(_READINGS)) for action in (work, both))
    # Something is left of the shortest message, whatever else the cores did meanwhile.
    return max(found - without, _LEAST)
