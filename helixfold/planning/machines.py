"""Estimate the time of the parts of a training step on a machine.

Times are measured for the local machine. For other machines they are computed from the rates in NVIDIA's data sheets
and from the FLOP and bytes of a pass, which are counted for the device model (`planning.passes`). A program is assumed
to reach the same share of these rates as NVIDIA's entry to MLPerf HPC v3.0, in bfloat16 (OpenFold on H100; described
in ScaleFold, arXiv 2404.11068). `RATES` has the rates of GPUs, `MACHINES` clusters of them, and `PUBLISHED` step times
to compare estimates with.
"""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import of_blocks
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties, properties_of
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel.collectives import BETWEEN_BRANCHES
from helixfold.parallel.gradients import BUCKET_ELEMENTS
from helixfold.parallel.mesh import Layout, Mesh, make_mesh
from helixfold.planning.estimate import Device, Seconds, Training, policy_of
from helixfold.planning.links import Line, Links, all_reduce_bytes, measured_links, min_seconds
from helixfold.planning.passes import PARTS, Pass

# Share of a device's rates that is reached, without the time of launches. It was determined by bisection so that
# `predict` returned 1.808 s for the first entry of `PUBLISHED`, from the counts for an H100 at commit 716cfa3. Nothing
# else was fitted. With the launches and bytes that were saved since, it returns 1.520 s.
REACHED = 0.1366
# Bytes per parameter that a step of the optimizer reads and writes: gradient, master, moments and average.
_OPTIMIZER_BYTES_PER_PARAMETER = 40
# Share of a link's rate that collectives reach, and latency of a collective in seconds within a node and between nodes.
_LINK_SHARE, _NEAR_LATENCY, _FAR_LATENCY = 0.8, 20e-6, 40e-6
# Share of a GPU's memory that is available for tensors.
MEMORY_LEFT = 0.92
# Share of the backward pass in the time of forward and backward pass.
_BACKWARD_SHARE = 2 / 3


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates of a device from its data sheet: `product` in FLOP per second, `memory` in bytes per second.

    `product` is for dense matrices in the dtype that "auto" means on the device. `reached` is the share of both that a
    program reaches. `call` is the time in seconds to launch an operator.
    """

    product: float
    memory: float
    reached: float = REACHED
    call: float = 5e-6

    def seconds(
        self, work: Training, properties: DeviceProperties, rank: int, policy: RecomputeConfig | None, part: str
    ) -> float:
        """Return the seconds of a part of the network, forward and backward, for all samples of a micro-batch.

        Messages between ranks are not included. `rank` is the index in branch parallelism. This is the time of the
        part's products or of its memory traffic, whichever is longer, plus the time to launch its operators. `policy`
        is the recompute policy; None is a forward pass without gradients.
        """
        own = policy_of(policy, part)
        cost, once = work.costs(own, properties, rank)[part], work.costs("none", properties, rank, plain=True)[part]
        products = once.forward.products
        if own is not None:
            products = (1 + (own != "none")) * products + once.backward.products
        moved = cost.forward.moved + cost.backward.moved
        busy = work.samples * max(products / self.product, moved / self.memory) / self.reached
        return busy + self.call * (cost.forward.launches + cost.backward.launches)

    def optimizer(self, parameters: int) -> float:
        """Return the seconds of an optimizer step for this number of parameters: the time to move its buffers."""
        return parameters * _OPTIMIZER_BYTES_PER_PARAMETER / self.memory


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Measured times in seconds, used instead of `Rates` on the local machine.

    `passes` has the time of each part of the network for one sample, by layout, branch rank and recompute policy (None:
    without gradients).
    """

    passes: Mapping[tuple[Layout, int, RecomputeConfig | None], Mapping[str, float]]
    parameter: float  # seconds per parameter of an optimizer step

    def seconds(
        self, work: Training, _: DeviceProperties, rank: int, policy: RecomputeConfig | None, part: str
    ) -> float:
        """Return the measured seconds of a part of the network, times the number of samples of a micro-batch."""
        return work.samples * self.passes[work.layout, rank, policy][part]

    def optimizer(self, parameters: int) -> float:
        """Return the seconds of an optimizer step, in proportion to the number of parameters."""
        return self.parameter * parameters


@dataclass(frozen=True, kw_only=True)
class Machine(Device):
    """A cluster of nodes with equal devices, and the links between them.

    `name` is its key in `MACHINES`, or "here" for the local machine. `speeds` gives the times of passes and the
    optimizer. `per_node` is the number of devices of a node. `near` are links within a node and `far` links between
    nodes. `memory` is the bytes that a rank may use. `overlaps` is whether gradients can be summed during the backward
    pass without slowing it down: this is so on GPUs, but on a CPU the same cores do both.
    """

    name: str
    speeds: Rates | Readings
    per_node: int
    near: Links
    far: Links
    overlaps: bool

    def links(self, ranks: int) -> Links:
        """Return the links that connect this number of consecutive ranks: `near` if they fit on a node, else `far`."""
        return self.near if ranks <= self.per_node else self.far

    def step_seconds(self, work: Training, policy: RecomputeConfig) -> Seconds:
        """Return the time of a training step with the layout of `work` and this recompute policy."""
        layout, gradient = work.layout, work.parameters * work.gradient_itemsize
        forward, part = self._pass(work, None), self._pass(work, policy)
        backward = _BACKWARD_SHARE * part.passes
        part = part.plus(forward, work.recycling_iterations)
        if work.clips_samples and layout.sharing > 1:
            sent = all_reduce_bytes(gradient, layout.sharing)
            part = part.plus(Seconds(gradients=self.links(layout.sharing).at("all_reduce", sent)))
        return Seconds(
            gradients=self._left_of_reduction(work, layout.ranks, backward),
            optimizer=self.speeds.optimizer(work.parameters),
        ).plus(part, math.ceil(work.micro_batches / layout.dp))

    def _pass(self, work: Training, policy: RecomputeConfig | None) -> Seconds:
        """Return the seconds of a pass with a recompute policy; None is a pass without gradients.

        Ranks of the two branches wait for each other in each part of the network, so the slower one counts.
        """
        # The work of a rank on a sample does not depend on the ranks of other samples.
        work = replace(work, layout=replace(work.layout, dp=1))
        total, layout = Seconds(), work.layout
        for part in PARTS:
            branches = []
            for rank in range(layout.bp):
                cost = work.costs(policy_of(policy, part), self.properties, rank)[part]
                messages = sum(
                    self.links(layout.sharing if kind in BETWEEN_BRANCHES else layout.dap).at(kind, work.samples * size)
                    for kind, size in (*cost.forward.messages, *cost.backward.messages)
                )
                passes = self.speeds.seconds(work, self.properties, rank, policy, part)
                branches.append(Seconds(passes=passes, messages=messages))
            total = total.plus(max(branches, key=lambda each: each.total))
        return total

    def _left_of_reduction(self, work: Training, ranks: int, backward: float) -> float:
        """Return the seconds of summing gradients over ranks that do not overlap with the backward pass.

        `backward` is the length of the backward pass in seconds.
        """
        if ranks == 1:
            return 0.0
        links, itemsize = self.links(ranks), work.gradient_itemsize
        whole = links.at("all_reduce", all_reduce_bytes(work.parameters * itemsize, ranks))
        if not self.overlaps:
            return whole
        # The last bucket is sent after the backward pass.
        last = all_reduce_bytes(min(work.parameters, BUCKET_ELEMENTS) * itemsize, ranks)
        return max(whole - backward, links.at("all_reduce", last))


# Rates of the GPUs in `DEVICE_MODELS`, from data sheets. Products are in float32 for T4 and V100, and in bfloat16 with
# float32 sums for the others.
RATES = {
    "t4": Rates(product=8.1e12, memory=0.32e12),
    "v100": Rates(product=15.7e12, memory=0.9e12),
    "rtx3090": Rates(product=71e12, memory=0.936e12),
    "rtx4090": Rates(product=165e12, memory=1.008e12),
    "l4": Rates(product=121e12, memory=0.3e12),
    "a100": Rates(product=312e12, memory=1.555e12),
    "a100-80": Rates(product=312e12, memory=2.0e12),
    "h100": Rates(product=989e12, memory=3.35e12),
    "h200": Rates(product=989e12, memory=4.8e12),
}


def _machine(name: str, *, near: float, far: float) -> Machine:
    """Return a machine of nodes with eight GPUs, from the one-way rates of links in bytes/s."""
    return Machine(
        name=name,
        properties=DEVICE_MODELS[name],
        speeds=RATES[name],
        memory=int(MEMORY_LEFT * DEVICE_MODELS[name].memory),
        per_node=8,
        near=_links(near, _NEAR_LATENCY),
        far=_links(far, _FAR_LATENCY),
        overlaps=True,
    )


def _links(rate: float, latency: float) -> Links:
    line = Line(fixed=latency, slope=1 / (_LINK_SHARE * rate))
    return Links(all_to_all=line, all_gather=line, reduce_scatter=line, all_reduce=line)


# Clusters by the name of their GPU. In DGX systems, GPUs are linked by NVLink, and each has its share of the network:
# 400 Gbit/s (H100 and H200), 200 Gbit/s (A100) or 50 Gbit/s (V100). The others are linked by PCIe (third generation for
# T4, else fourth), and 100 Gbit/s for each node are assumed.
MACHINES = {
    "t4": _machine("t4", near=16e9, far=1.6e9),
    "v100": _machine("v100", near=150e9, far=6.25e9),
    "rtx3090": _machine("rtx3090", near=32e9, far=1.6e9),
    "rtx4090": _machine("rtx4090", near=32e9, far=1.6e9),
    "l4": _machine("l4", near=32e9, far=1.6e9),
    "a100": _machine("a100", near=300e9, far=25e9),
    "a100-80": _machine("a100-80", near=300e9, far=25e9),
    "h100": _machine("h100", near=450e9, far=50e9),
    "h200": _machine("h200", near=450e9, far=50e9),
}


def measured_steps(work: Training, layouts: Sequence[Layout], device: torch.device) -> Readings:
    """Measure the passes of every rank in these layouts (with dp=1), one after another on one device.

    Each rank is measured without gradients and with each policy of `work`. An optimizer step is measured, too. Messages
    between ranks are simulated, without waiting. The random state is restored.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        passes = {}
        for layout in layouts:
            for rank in range(layout.bp):
                for policy in (None, *work.policies):
                    program = Pass(work.model, work.size, policy, Mesh.simulated(layout, rank, device), work.loss)
                    passes[layout, rank, policy] = program.seconds()
        network = AlphaFold(of_blocks(work.model, 1)).to(device).train()
        optimizer = FlatOptimizer(network, OptimizerConfig(), working_dtype=work.size.dtype)

        def step() -> None:
            optimizer.collect(last=True)
            optimizer.step(1e-3, micro_batches=1)

        seconds = min_seconds(step, device)
    return Readings(passes=passes, parameter=seconds / len(optimizer.gradient_sum))


def measured_machine(work: Training, ranks: int, mesh: Mesh, memory: int) -> Machine:
    """Measure devices and links of the mesh's ranks for a training step on `ranks` ranks.

    `memory` is the bytes that each rank may use. All ranks must call this together, so that all are busy during the
    measurements, as in a step. Every rank returns the times of its own device, and the first rank's times of the links.
    """
    hosts = mesh.all_gather(platform.node())
    per_node = min(hosts.count(host) for host in hosts)
    near = far = Links()
    if mesh.size > 1:
        near = far = measured_links(mesh, mesh.world)
        if 1 < per_node < mesh.size and mesh.size % per_node == 0:
            near = measured_links(mesh, make_mesh(Layout(dp=mesh.size // per_node, dap=per_node), mesh.device).axial)
    mesh.barrier()
    return Machine(
        name="here",
        properties=properties_of(mesh.device),
        speeds=measured_steps(work, sharings(work, ranks), mesh.device),
        memory=memory,
        per_node=per_node,
        near=near,
        far=far,
        overlaps=mesh.device.type == "cuda",
    )


def sharings(work: Training, ranks: int) -> list[Layout]:
    """Return the ways to share a sample in the layouts of `ranks` ranks, as layouts with dp=1, without repeats."""
    return list(dict.fromkeys(replace(each, dp=1) for each in work.layouts(ranks)))


# Published times in seconds of a step of AlphaFold's initial training on H100, with description, layout and recompute
# policy: NVIDIA's entries to MLPerf HPC v3.0, crop 256, 128 MSA rows, 1,024 extra rows, 1 to 4 recycling iterations.
PUBLISHED: tuple[tuple[str, Layout, Keep, float], ...] = (
    ("one sample on each GPU", Layout(dp=256), "block", 1.808),
    ("2,080 GPUs, eight for a sample", Layout(dp=260, dap=8), "none", 0.682),
)
