"""Steps of a minute network on a machine whose calls take no time, so that its sizes show."""

from dataclasses import replace

import torch

from helixfold.execution.recompute import Choice, RecomputeConfig
from helixfold.model.config import ModelConfig
from helixfold.planning.estimate import Training
from helixfold.planning.links import Line, Links
from helixfold.planning.machines import MACHINES, Machine, Rates
from helixfold.planning.size import PassSize
from tests.support.networks import tiny_config

SIZE = PassSize(residues=32, msa_rows=16, extra_rows=32, templates=0, dtype=torch.bfloat16)
RATES = Rates(product=1e12, memory=1e11, reached=1.0, call=0.0)
MACHINE = replace(MACHINES["h100"], speeds=RATES)


def small_config(order: str = "end", blocks: int = 12) -> ModelConfig:
    """Return a network that is counted in a moment; how many blocks it has does not matter for that."""
    config = tiny_config(order)  # type: ignore[arg-type]
    return replace(
        config,
        evoformer=replace(config.evoformer, blocks=blocks),
        extra_msa=replace(config.extra_msa, blocks=1),
        template=None,
        structure=replace(config.structure, layers=1),
    )


def workload(order: str = "middle", parts: int = 8, keep: Choice = "none") -> Training:
    """Return a step of `parts` samples."""
    return Training(
        model=small_config(order),
        size=SIZE,
        state=2**24,
        recompute=RecomputeConfig.everywhere(keep),
        micro_batches=parts,
        recycling_iterations=1.5,
        parameters=10**6,
    )


def with_links(fixed: float, slope: float) -> Machine:
    """Return the machine with links that all take as long."""
    line = Line(fixed=fixed, slope=slope)
    links = Links(all_to_all=line, all_gather=line, reduce_scatter=line, all_reduce=line)
    return replace(MACHINE, near=links, far=links)
