"""Machines for training runs, and the time that the parts of a step take on them.

For the machine at hand times are measured. For other machines they follow from the rates in NVIDIA's data sheets and
from the FLOP and bytes of a pass, which are counted for the card (`planning.training`). A program is assumed to reach
the same share of these rates as NVIDIA's entry to MLPerf HPC v3.0, in bfloat16 (OpenFold on H100; described in
ScaleFold, arXiv 2404.11068).
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from helixfold.execution.recompute import RecomputeConfig
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import of_blocks
from helixfold.ops.card import CARDS, Card, card_of
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel.mesh import Layout, Mesh, make_mesh
from helixfold.planning.links import Line, Links, least_seconds, measured_links
from helixfold.planning.training import Pass, TrainingNeeds, keep_of, part_costs

# The share of a device's rates that is reached, the time of launches aside. It was found by bisection: with it
# `predict` returned 1.808 s for the first of `PUBLISHED`, from what was counted for an H100 at commit 716cfa3. Nothing
# else was fitted; with the launches and bytes that have gone since, it returns 1.520 s.
REACHED = 0.1366
# Bytes per parameter that a step of the optimizer reads and writes: gradient, master, moments and average.
_OPTIMIZER_BYTES = 40
# Share of a link's rate that collectives reach, and seconds of a collective that sends next to nothing, within a node
# and between nodes.
_LINK_REACHED, _NEAR_LATENCY, _FAR_LATENCY = 0.8, 20e-6, 40e-6
# Share of a GPU's memory that is left for tensors.
_MEMORY_LEFT = 0.92


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates of a device: `product` in bfloat16 FLOP per second and `memory` in bytes per second.

    `reached` is the share of them that a program reaches. `call` is the seconds of an operator that computes next to
    nothing, since PyTorch launches operators one by one.
    """

    product: float
    memory: float
    reached: float = REACHED
    call: float = 5e-6

    def seconds(self, needs: TrainingNeeds, branch_rank: int, keep: RecomputeConfig | None, part: str) -> float:
        """Return the seconds of a part of the network, forward and backward, without messages between ranks.

        It is the time of the part's products or of its memory traffic, whichever is longer, plus that of launching its
        operators. `keep` is the recompute policy; None is a forward pass without gradients.
        """
        cost = needs.cost(keep, part, branch_rank)
        once = part_costs(
            needs.model, needs.size, "none", needs.card, needs.layout, branch_rank=branch_rank, plain=True
        )[part]
        products = once.forward.products
        if keep is not None:
            products = (1 + (keep_of(keep, part) != "none")) * products + once.backward.products
        moved = cost.forward.moved + cost.backward.moved
        busy = needs.samples * max(products / self.product, moved / self.memory) / self.reached
        return busy + self.call * (cost.forward.launches + cost.backward.launches)

    def optimizer(self, parameters: int) -> float:
        """Return the seconds of an optimizer step: the time to read and write its buffers."""
        return parameters * _OPTIMIZER_BYTES / self.memory


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Measured times in seconds.

    `passes` has the time of each part of the network for one sample, by layout, branch rank and recompute policy.
    """

    passes: Mapping[tuple[Layout, int, RecomputeConfig | None], Mapping[str, float]]
    parameter: float  # seconds per parameter of an optimizer step

    def seconds(self, needs: TrainingNeeds, branch_rank: int, keep: RecomputeConfig | None, part: str) -> float:
        """Return the measured seconds of a part of the network, times the number of samples."""
        return needs.samples * self.passes[needs.layout, branch_rank, keep][part]

    def optimizer(self, parameters: int) -> float:
        """Return the seconds of an optimizer step, in proportion to the number of parameters."""
        return self.parameter * parameters


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Devices of one kind in nodes, with the links between them.

    `memory` is the bytes that a rank may use. `overlaps` says whether gradients can be summed during the backward pass
    without slowing it down: they can on GPUs, but on a CPU the same cores do both.
    """

    name: str
    card: Card
    speeds: Rates | Readings
    memory: int
    per_node: int
    near: Links  # within a node
    far: Links
    overlaps: bool

    def links(self, ranks: int) -> Links:
        """Return the links between this number of consecutive ranks."""
        return self.near if ranks <= self.per_node else self.far


def _machine(name: str, card: Card, *, product: float, memory: float, nvlink: float, network: float) -> Machine:
    """Return nodes of eight GPUs by the rates in a data sheet.

    `product` is dense bfloat16 FLOP/s, `memory` bytes/s, and `nvlink` and `network` are bytes/s one way.
    """
    return Machine(
        name=name,
        card=card,
        speeds=Rates(product=product, memory=memory),
        memory=int(_MEMORY_LEFT * card.memory),
        per_node=8,
        near=_links(nvlink, _NEAR_LATENCY),
        far=_links(network, _FAR_LATENCY),
        overlaps=True,
    )


def _links(rate: float, latency: float) -> Links:
    line = Line(fixed=latency, slope=1 / (_LINK_REACHED * rate))
    return Links(all_to_all=line, all_gather=line, reduce_scatter=line, all_reduce=line)


# Each GPU has a network adapter of its own: 400 Gbit/s (DGX H100 and H200), 200 Gbit/s (DGX A100).
MACHINES = {
    "h100": _machine("h100", CARDS["h100"], product=989e12, memory=3.35e12, nvlink=450e9, network=50e9),
    "h200": _machine("h200", CARDS["h200"], product=989e12, memory=4.8e12, nvlink=450e9, network=50e9),
    "a100": _machine("a100", CARDS["a100-80"], product=312e12, memory=2.0e12, nvlink=300e9, network=25e9),
}


def measured_steps(
    needs: TrainingNeeds, policies: Sequence[RecomputeConfig], layouts: Sequence[Layout], device: torch.device
) -> Readings:
    """Measure passes with the share of every rank in these layouts (with dp=1), one after another on one device.

    `policies` are the recompute policies to measure. Messages of other ranks are not waited for. The random state is
    restored.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        passes = {}
        for layout in layouts:
            for rank in range(layout.bp):
                for keep in (None, *policies):
                    program = Pass(needs.model, needs.size, keep, Mesh.simulated(layout, rank, device), needs.loss)
                    passes[layout, rank, keep] = program.seconds()
        network = AlphaFold(of_blocks(needs.model, 1)).to(device).train()
        optimizer = FlatOptimizer(network, OptimizerConfig(), working_dtype=needs.size.dtype)

        def step() -> None:
            optimizer.collect(last=True)
            optimizer.step(1e-3, micro_batches=1)

        seconds = least_seconds(step, device)
    return Readings(passes=passes, parameter=seconds / len(optimizer.gradient_sum))


def measured_machine(
    needs: TrainingNeeds, policies: Sequence[RecomputeConfig], layouts: Sequence[Layout], mesh: Mesh, memory: int
) -> Machine:
    """Measure the machine of this mesh's ranks; `memory` is the bytes that each may use.

    All ranks must call this together, so that all are busy during the measurements, as in a step. Every rank returns
    the measurements of its own device, and those of the links by the first rank. `policies` are the recompute
    policies and `layouts` the ways to share a sample that are measured.
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
        card=card_of(mesh.device),
        speeds=measured_steps(needs, policies, layouts, mesh.device),
        memory=memory,
        per_node=per_node,
        near=near,
        far=far,
        overlaps=mesh.device.type == "cuda",
    )


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """Published time of a step of AlphaFold's initial training."""

    source: str
    machine: str
    layout: Layout
    recomputes: bool
    seconds: float


# NVIDIA's entries to MLPerf HPC v3.0: crop 256, 128 sequences, 1,024 extra ones, 1 to 4 recycling passes.
PUBLISHED = (
    PublishedRun(
        source="one sample on each GPU", machine="h100", layout=Layout(dp=256), recomputes=True, seconds=1.808
    ),
    PublishedRun(
        source="2,080 GPUs, eight for a sample",
        machine="h100",
        layout=Layout(dp=260, dap=8),
        recomputes=False,
        seconds=0.682,
    ),
)
