"""The needs of a training run, known before it begins: its memory, what it recomputes therefore, and its work."""

import platform
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import torch

from helixfold.config import ModelConfig
from helixfold.execution.available import available_memory
from helixfold.execution.recompute import RecomputeConfig
from helixfold.inference import DTYPES
from helixfold.model.alphafold import AlphaFold
from helixfold.ops.card import CARDS, Card
from helixfold.parallel.layout import Layout
from helixfold.parallel.mesh import Mesh
from helixfold.planning.layouts import Workload
from helixfold.planning.recompute_choice import no_room, settled
from helixfold.planning.size import PassSize, gib
from helixfold.planning.training import ALONE, TrainingNeeds
from helixfold.training.config import TrainingConfig

_FLOAT = 4


def needs(config: TrainingConfig, card: Card = CARDS["cpu"], layout: Layout = ALONE) -> TrainingNeeds:
    """Return what each rank of a run takes on a card, where those of a sample share it as the layout says."""
    sizes = config.example.sizes()
    return TrainingNeeds(
        model=config.model,
        size=PassSize(
            residues=sizes["r"],
            msa_rows=sizes["s"],
            extra_rows=sizes["e"],
            templates=sizes["t"],
            dtype=DTYPES[config.dtype],
            # What all recycling passes read is there at once.
            ensemble=config.example.max_passes,
        ),
        samples=config.micro_batch,
        state=_state(config),
        card=card,
        layout=layout,
    )


def with_settled_recompute(config: TrainingConfig, memory: int, card: Card, layout: Layout = ALONE) -> TrainingConfig:
    """The run with every "auto" of `recompute` replaced by what costs the least time of all that fits into `memory`.

    A rank of the `layout` may have less to keep than one that is alone. Raises `ConfigError` if nothing fits, with what
    would.
    """
    if config.recompute.is_settled:
        return config
    wanted = needs(config, card, layout)
    found = settled(config.recompute, wanted, memory)
    if found is None:
        raise no_room(config.recompute, wanted, memory)
    return replace(config, recompute=found)


def memory_of_each(mesh: Mesh) -> int:
    """Return the bytes that every rank may take: those of the rank that has least.

    Ranks of one host share its processors' memory.
    """
    everyone = mesh.all_gather({"host": platform.node(), "free": available_memory(mesh.device)})
    hosts = [each["host"] for each in everyone]
    sharing = 1 if mesh.device.type == "cuda" else max(hosts.count(host) for host in hosts)
    return int(min(each["free"] for each in everyone)) // sharing


def remark(config: TrainingConfig, memory: int, card: Card, layout: Layout) -> str:
    """Return what was settled, for the log."""
    peak = gib(needs(config, card, layout).peak(config.recompute))
    return f"recomputes {config.recompute}: predicted to take {peak} of the {gib(memory)} that there are"


def table(config: TrainingConfig, memory: int, card: Card) -> Iterator[str]:
    """Yield the lines of a dry run: what would be taken by what is recomputed, and what is chosen."""
    wanted = needs(config, card)
    size = wanted.size
    yield (
        f"one part of a batch, {config.micro_batch} x {size.residues} residues, {size.msa_rows} + {size.templates} + "
        f"{size.extra_rows:,} rows, {config.dtype}; GiB at the peak"
    )
    rows = {keep: RecomputeConfig.everywhere(keep) for keep in ("none", "inputs", "block")}
    if config.recompute.is_settled:
        rows["as set"] = config.recompute
    stages = list(wanted.forecast(rows["none"]).stages)
    yield f"{'recompute':10}{'state':>8}{''.join(f'{stage:>12}' for stage in stages)}{'in all':>9}{'fits':>6}"
    for name, keep in rows.items():
        taken = wanted.forecast(keep).stages
        cells = "".join(f"{_number(config.micro_batch * taken[stage]):>12}" for stage in stages)
        fits = "yes" if wanted.needed(keep) <= memory else "no"
        yield f"{name:10}{_number(wanted.state):>8}{cells}{_number(wanted.peak(keep)):>9}{fits:>6}"
    if not config.recompute.is_settled:
        chosen = with_settled_recompute(config, memory, card).recompute
        yield f"chosen for {gib(memory)}: {chosen}, {_number(wanted.peak(chosen))} GiB in all"


def workload(config: TrainingConfig) -> Workload:
    """Return what a step of this run takes, on however many ranks."""
    return Workload(
        needs=needs(config),
        recompute=config.recompute,
        parts=config.parts,
        # Each step draws its number of passes from 1 to the most; the last of them learns.
        passes=(config.example.max_passes - 1) / 2,
        parameters=parameter_count(config.model),
        gradient_itemsize=DTYPES[config.reduction].itemsize,
        clips_samples=config.optimizer.clipping == "sample",
    )


def _state(config: TrainingConfig) -> int:
    """Bytes of parameters, both moments, the average and the sum of gradients; of a part's gradients and of the rounded
    copies where they are apart (`FlatOptimizer`); and of what islands have to meet (`OuterOptimizer`).
    """
    rounded = DTYPES[config.dtype].itemsize if config.dtype != "float32" else 0
    gradients = DTYPES[config.dtype].itemsize if rounded or config.optimizer.clipping == "sample" else 0
    outer = 3 * _FLOAT if config.outer.islands > 1 else 0
    return parameter_count(config.model) * (5 * _FLOAT + rounded + gradients + outer)


@cache
def parameter_count(model: ModelConfig) -> int:
    """Return how many numbers a model learns."""
    with torch.device("meta"):
        return sum(each.numel() for each in AlphaFold(model).parameters())


def _number(size: int) -> str:
    return f"{size / 2**30:,.1f}"
