"""What ranks run on, and how long the parts of a step take on one of them: measured here by running them."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from helixfold.execution.recompute import RecomputeConfig
from helixfold.model.alphafold import AlphaFold
from helixfold.ops.card import Card, card_of
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel.layout import Layout
from helixfold.parallel.mesh import Mesh, divided
from helixfold.planning.links import Links, least_seconds, measured_links
from helixfold.planning.recompute_choice import TrainingNeeds
from helixfold.planning.size import of_blocks
from helixfold.planning.training import Pass


@runtime_checkable
class Speeds(Protocol):
    """How long one device takes for the parts of a step."""

    def seconds(self, needs: TrainingNeeds, branch_rank: int, keep: RecomputeConfig | None, part: str) -> float:
        """Return the seconds of one part of a pass on a rank of `needs.layout`, messages aside.

        That is forward and backward, and what is recomputed; without `keep`, forward without gradients.
        """
        ...

    def optimizer(self, parameters: int) -> float:
        """Return the seconds of a step of the optimizer."""
        ...


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Devices of one kind, some of them closer to each other.

    `memory` is what a rank may take, in bytes. `overlaps` says whether gradients are summed while others are computed
    without either taking longer: so on GPUs, while on a CPU both are done by the same cores.
    """

    name: str
    card: Card
    speeds: Speeds
    memory: int
    per_node: int
    near: Links  # within a node
    far: Links
    overlaps: bool

    def links(self, ranks: int) -> Links:
        """Return the links between so many ranks that follow each other."""
        return self.near if ranks <= self.per_node else self.far


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Seconds as measured: of a sample's passes by layout, branch rank, recompute and part, and of the optimizer."""

    passes: Mapping[tuple[Layout, int, RecomputeConfig | None], Mapping[str, float]]
    parameter: float  # of each, in a step of the optimizer

    def seconds(self, needs: TrainingNeeds, branch_rank: int, keep: RecomputeConfig | None, part: str) -> float:
        """Return what was read, once for each sample."""
        return needs.samples * self.passes[needs.layout, branch_rank, keep][part]

    def optimizer(self, parameters: int) -> float:
        """Return the seconds of a step, in proportion to its parameters."""
        return self.parameter * parameters


def measured_steps(
    needs: TrainingNeeds, keeps: Sequence[RecomputeConfig], layouts: Sequence[Layout], device: torch.device
) -> Readings:
    """Return readings of passes with every rank's share under these layouts, which have one sample, on one device.

    What the other ranks would send is not waited for. The state of random numbers stays what it was.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        passes = {}
        for layout in layouts:
            for rank in range(layout.bp):
                for keep in (None, *keeps):
                    chosen = keep or RecomputeConfig.everywhere("none")
                    program = Pass(needs.model, needs.size, chosen, Mesh.pretended(layout, rank, device))
                    passes[layout, rank, keep] = program.seconds(learns=keep is not None)
        network = AlphaFold(of_blocks(needs.model, 1)).to(device).train()
        optimizer = FlatOptimizer(network, OptimizerConfig(), working_dtype=needs.size.dtype)

        def step() -> None:
            optimizer.collect()
            optimizer.step(1e-3, parts=1)

        seconds = least_seconds(step, device)
    return Readings(passes=passes, parameter=seconds / len(optimizer.gradient_sum))


def measured_machine(
    needs: TrainingNeeds, keeps: Sequence[RecomputeConfig], layouts: Sequence[Layout], mesh: Mesh, memory: int
) -> Machine:
    """Return what the ranks of this mesh run on; `memory` is what each may take, in bytes.

    All of them must ask together, and work while they are measured, as they do in a step. Each has the readings of its
    own device, and the first one's of the links.
    """
    hosts = mesh.gather(platform.node())
    per_node = min(hosts.count(host) for host in hosts)
    near = far = Links()
    if mesh.size > 1:
        near = far = measured_links(mesh, mesh.world)
        if 1 < per_node < mesh.size and mesh.size % per_node == 0:
            near = measured_links(mesh, divided(Layout(dp=mesh.size // per_node, dap=per_node), mesh.device).axial)
    mesh.barrier()
    return Machine(
        name="here",
        card=card_of(mesh.device),
        speeds=measured_steps(needs, keeps, layouts, mesh.device),
        memory=memory,
        per_node=per_node,
        near=near,
        far=far,
        overlaps=mesh.device.type == "cuda",
    )
