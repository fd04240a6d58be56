"""Forecast the memory that a training run needs, choose what it recomputes, and count the work of a step."""

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
from helixfold.ops.card import CARDS, Card
from helixfold.parallel.mesh import Layout, Mesh
from helixfold.planning.layouts import Workload
from helixfold.planning.recompute_choice import CHECKPOINT_POLICIES, no_room, settled
from helixfold.planning.size import PassSize, dtype_name, gib
from helixfold.planning.training import ALONE, TrainingNeeds
from helixfold.training.config import TrainingConfig

_FLOAT = 4


def training_needs(
    config: TrainingConfig,
    card: Card = CARDS["cpu"],
    layout: Layout = ALONE,
    *,
    state: int | None = None,
    trained: frozenset[str] | None = None,
) -> TrainingNeeds:
    """Return the values that determine the memory of each rank of a run on a card, with a layout that divides samples.

    They are `TrainingNeeds`, whose methods forecast the memory for a recompute policy. `state` is the bytes of
    parameters and optimizer, if they are not those of a run that trains all parameters, and `trained` names the
    parameters that have gradients.
    """
    sizes, dtype = config.example.sizes(), dtype_on(config.dtype, card)
    return TrainingNeeds(
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
        card=card,
        layout=layout,
        loss=config.loss,
        trained=trained,
    )


def with_settled_recompute(
    config: TrainingConfig,
    memory: int,
    card: Card,
    layout: Layout = ALONE,
    *,
    state: int | None = None,
    trained: frozenset[str] | None = None,
) -> TrainingConfig:
    """Replace every "auto" of `recompute` by the fastest policy that fits into `memory` bytes.

    If ranks share samples, as `layout` says, each of them needs less. `state` and `trained` are as for
    `training_needs`. Raise `ConfigError` if no policy fits.
    """
    if config.recompute.is_settled:
        return config
    needs = training_needs(config, card, layout, state=state, trained=trained)
    recompute = settled(config.recompute, needs, memory)
    if recompute is None:
        raise no_room(config.recompute, needs, memory)
    return replace(config, recompute=recompute)


def memory_per_rank(mesh: Mesh) -> int:
    """Return the bytes that every rank may use: the least that is available to any of them.

    Ranks on the CPUs of one host share its memory.
    """
    ranks = mesh.all_gather({"host": platform.node(), "free": available_memory(mesh.device)})
    hosts = [rank["host"] for rank in ranks]
    sharing = 1 if mesh.device.type == "cuda" else max(hosts.count(host) for host in hosts)
    return int(min(rank["free"] for rank in ranks)) // sharing


def recompute_message(config: TrainingConfig, memory: int, card: Card, layout: Layout) -> str:
    """Return a sentence for the log on the chosen recompute policy."""
    peak = gib(training_needs(config, card, layout).peak(config.recompute))
    return f"recomputes {config.recompute}: predicted to take {peak} of the {gib(memory)} that there are"


def memory_table(config: TrainingConfig, memory: int, card: Card) -> Iterator[str]:
    """Yield the lines of a dry run: the memory that each recompute policy needs, and the policy that is chosen."""
    needs = training_needs(config, card)
    size = needs.size
    yield (
        f"one micro-batch, {config.micro_batch} x {size.residues} residues, {size.msa_rows} + {size.templates} + "
        f"{size.extra_rows:,} rows, {dtype_name(size.dtype)}; GiB at the peak"
    )
    rows: dict[str, RecomputeConfig] = {keep: RecomputeConfig.everywhere(keep) for keep in CHECKPOINT_POLICIES}
    if config.recompute.is_settled:
        rows["as set"] = config.recompute
    stages = list(needs.forecast(rows["none"]).stages)
    yield f"{'recompute':10}{'state':>8}{''.join(f'{stage:>12}' for stage in stages)}{'in all':>9}{'fits':>6}"
    for name, keep in rows.items():
        forecast = needs.forecast(keep).stages
        cells = "".join(f"{_number(config.micro_batch * forecast[stage]):>12}" for stage in stages)
        fits = "yes" if needs.needed(keep) <= memory else "no"
        yield f"{name:10}{_number(needs.state):>8}{cells}{_number(needs.peak(keep)):>9}{fits:>6}"
    if not config.recompute.is_settled:
        chosen = with_settled_recompute(config, memory, card).recompute
        yield f"chosen for {gib(memory)}: {chosen}, {_number(needs.peak(chosen))} GiB in all"


def workload(config: TrainingConfig, card: Card = CARDS["cpu"]) -> Workload:
    """Return the work of one step of this run on such cards, for any number of ranks."""
    return Workload(
        needs=training_needs(config, card),
        recompute=config.recompute,
        micro_batches=config.micro_batches,
        # Each step draws its number of recycling iterations from 1 to `max_passes`; the last one has gradients.
        recycling_iterations=(config.example.max_passes - 1) / 2,
        parameters=parameter_count(config.model),
        gradient_itemsize=DTYPES[config.reduction].itemsize,
        clips_samples=config.optimizer.clipping == "sample",
    )


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
