"""A training run as a workload to estimate, with the choice of what it recomputes, and the lines about its memory."""

import platform
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import torch

from helixfold.execution.available import available_memory
from helixfold.execution.device import DTYPES, dtype_on
from helixfold.execution.recompute import RecomputeConfig
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import ModelConfig
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties
from helixfold.parallel.mesh import Layout, Mesh
from helixfold.planning.estimate import CHECKPOINT_POLICIES, Device, Training, estimate
from helixfold.planning.passes import ALONE
from helixfold.planning.size import PassSize, dtype_name, gib
from helixfold.training.config import TrainingConfig

_FLOAT = 4


def workload(
    config: TrainingConfig,
    properties: DeviceProperties = DEVICE_MODELS["cpu"],
    layout: Layout = ALONE,
    *,
    state: int | None = None,
    trained: frozenset[str] | None = None,
) -> Training:
    """Return one step of this run on such cards, with a layout that divides samples.

    `state` is the bytes of parameters and optimizer, if they are not those of a run that trains all parameters, and
    `trained` names the parameters that have gradients.
    """
    sizes, dtype = config.example.sizes(), dtype_on(config.dtype, properties)
    return Training(
        model=config.model,
        size=PassSize(
            residues=sizes["r"],
            msa_rows=sizes["s"],
            extra_rows=sizes["e"],
            templates=sizes["t"],
            dtype=dtype,
            # The inputs of all recycling iterations are in memory together.
            ensemble=config.example.max_passes,
        ),
        samples=config.micro_batch,
        state=_state(config, dtype) if state is None else state,
        layout=layout,
        recompute=config.recompute,
        trained=trained,
        loss=config.loss,
        micro_batches=config.micro_batches,
        # Each step draws its number of recycling iterations from 1 to `max_passes`; the last one has gradients.
        recycling_iterations=(config.example.max_passes - 1) / 2,
        parameters=parameter_count(config.model),
        gradient_itemsize=DTYPES[config.reduction].itemsize,
        clips_samples=config.optimizer.clipping == "sample",
    )


def with_settled_recompute(
    config: TrainingConfig, memory: int, properties: DeviceProperties, layout: Layout = ALONE
) -> tuple[TrainingConfig, str]:
    """Replace every "auto" of `recompute` by the fastest policy that fits into `memory` bytes, on each rank.

    Return also a sentence for the log on the policy. Raise `ConfigError` if no policy fits.
    """
    found = estimate(workload(config, properties, layout), Device(properties=properties, memory=memory))
    recompute = found.settled()
    message = f"recomputes {recompute}: predicted to take {gib(found.peak)} of the {gib(memory)} that there are"
    return replace(config, recompute=recompute), message


def memory_per_rank(mesh: Mesh) -> int:
    """Return the bytes that every rank may use: the least that is available to any of them.

    Ranks on the CPUs of one host share its memory.
    """
    ranks = mesh.all_gather({"host": platform.node(), "free": available_memory(mesh.device)})
    hosts = [rank["host"] for rank in ranks]
    sharing = 1 if mesh.device.type == "cuda" else max(hosts.count(host) for host in hosts)
    return int(min(rank["free"] for rank in ranks)) // sharing


def memory_table(config: TrainingConfig, memory: int, properties: DeviceProperties) -> Iterator[str]:
    """Yield the lines of a dry run: the memory that each recompute policy needs, and the policy that is chosen."""
    work, device = workload(config, properties), Device(properties=properties, memory=memory)
    size = work.size
    yield (
        f"one micro-batch, {work.samples} x {size.residues} residues, {size.msa_rows} + {size.templates} + "
        f"{size.extra_rows:,} rows, {dtype_name(size.dtype)}; GiB at the peak"
    )
    policies: dict[str, RecomputeConfig] = {keep: RecomputeConfig.everywhere(keep) for keep in CHECKPOINT_POLICIES}
    if config.recompute.is_settled:
        policies["as set"] = config.recompute
    rows = {name: estimate(replace(work, recompute=keep), device) for name, keep in policies.items()}
    stages = list(rows["none"].memory.stages)
    yield f"{'recompute':10}{'state':>8}{''.join(f'{stage:>12}' for stage in stages)}{'in all':>9}{'fits':>6}"
    for name, each in rows.items():
        cells = "".join(f"{_number(work.samples * each.memory.stages[stage]):>12}" for stage in stages)
        fits = "yes" if each.fits else "no"
        yield f"{name:10}{_number(work.state):>8}{cells}{_number(each.peak):>9}{fits:>6}"
    if not config.recompute.is_settled:
        found = estimate(work, device)
        yield f"chosen for {gib(memory)}: {found.settled()}, {_number(found.peak)} GiB in all"


def _state(config: TrainingConfig, dtype: torch.dtype) -> int:
    """Return the bytes of parameters, gradients and optimizer state of a run whose trunk computes in `dtype`.

    `FlatOptimizer` has parameters, both moments, the moving average and the sum of gradients in float32, and for some
    settings gradients of a micro-batch and a rounded copy of the parameters. `OuterOptimizer` has three buffers more.
    """
    rounded = dtype.itemsize if dtype != torch.float32 else 0
    gradients = dtype.itemsize if rounded or config.optimizer.clipping == "sample" else 0
    outer = 3 * _FLOAT if config.outer.islands > 1 else 0
    return parameter_count(config.model) * (5 * _FLOAT + rounded + gradients + outer)


@cache
def parameter_count(model: ModelConfig) -> int:
    """Return the number of parameters of a model."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AlphaFold(model).parameters())


def _number(size: int) -> str:
    return f"{size / 2**30:,.1f}"
