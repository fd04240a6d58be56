"""Estimate a training step's memory and time, and choose the checkpoint policy that fits into memory."""

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

_FLOAT_BYTES = 4


def workload(
    config: TrainingConfig,
    properties: DeviceProperties = DEVICE_MODELS["cpu"],
    layout: Layout = ALONE,
    *,
    state: int | None = None,
    trained: frozenset[str] | None = None,
) -> Training:
    """Return one step of a training run as a workload, from which memory and time are estimated.

    `properties` describes the devices, and `layout` how ranks share a sample. `state` is the number of bytes of
    parameters, gradients and optimizer state; by default all parameters are trained. `trained` names the parameters
    that have gradients; None means all.
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
    """Replace every "auto" in `recompute` with the fastest checkpoint policy that fits into `memory` bytes per rank.

    Also return a sentence about the policy for the log. Raise `ConfigError` if no policy fits.
    """
    training_estimate = estimate(workload(config, properties, layout), Device(properties=properties, memory=memory))
    recompute = training_estimate.settled()
    message = f"recomputes {recompute}: estimated to take {gib(training_estimate.peak)} of {gib(memory)}"
    return replace(config, recompute=recompute), message


def memory_per_rank(mesh: Mesh) -> int:
    """Return the number of bytes that every rank may use: the smallest available memory of all ranks.

    Ranks on the CPUs of one host share its memory equally. All ranks call this together.
    """
    ranks = mesh.all_gather({"host": platform.node(), "free": available_memory(mesh.device)})
    hosts = [rank["host"] for rank in ranks]
    ranks_per_host = 1 if mesh.device.type == "cuda" else max(hosts.count(host) for host in hosts)
    return int(min(rank["free"] for rank in ranks)) // ranks_per_host


def memory_table(config: TrainingConfig, memory: int, properties: DeviceProperties) -> Iterator[str]:
    """Yield the lines of a dry run: a table of the memory in GiB with each checkpoint policy.

    A last line has the policy that fits into `memory` bytes, if one has to be chosen.
    """
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
    yield f"{'recompute':10}{'state':>8}{''.join(f'{stage:>12}' for stage in stages)}{'total':>9}{'fits':>6}"
    for name, each in rows.items():
        cells = "".join(f"{_in_gib(work.samples * each.memory.stages[stage]):>12}" for stage in stages)
        fits = "yes" if each.fits else "no"
        yield f"{name:10}{_in_gib(work.state):>8}{cells}{_in_gib(each.peak):>9}{fits:>6}"
    if not config.recompute.is_settled:
        best = estimate(work, device)
        yield f"chosen for {gib(memory)}: {best.settled()}, {_in_gib(best.peak)} GiB in total"


def _state(config: TrainingConfig, dtype: torch.dtype) -> int:
    """Return the bytes of parameters, gradients and optimizer state of a run whose trunk computes in `dtype`.

    `FlatOptimizer` holds parameters, both moments, the moving average and the sum of gradients in float32, and for some
    settings the gradients of a micro-batch and a rounded copy of the parameters. `OuterOptimizer` holds three more
    buffers.
    """
    rounded = dtype.itemsize if dtype != torch.float32 else 0
    gradients = dtype.itemsize if rounded or config.optimizer.clipping == "sample" else 0
    outer = 3 * _FLOAT_BYTES if config.outer.islands > 1 else 0
    return parameter_count(config.model) * (5 * _FLOAT_BYTES + rounded + gradients + outer)


@cache
def parameter_count(model: ModelConfig) -> int:
    """Return the number of parameters (scalars) of a model."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AlphaFold(model).parameters())


def _in_gib(size: int) -> str:
    """Return bytes as text in GiB."""
    return f"{size / 2**30:,.1f}"
