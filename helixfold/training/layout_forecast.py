"""Forecast the time and memory of a training run's step by how its ranks are divided, as lines for the screen."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from data_pipeline.errors import InputError
from helixfold.execution.recompute import RecomputeConfig
from helixfold.parallel.launch import on_ranks
from helixfold.planning import machines
from helixfold.planning.layouts import Workload, best, machine_of_ranks, predict, predictions, table, where_axial_stops
from helixfold.planning.machines import Machine
from helixfold.planning.size import gib
from helixfold.presets import with_parallel_blocks
from helixfold.training.config import TrainingConfig
from helixfold.training.memory import workload
from helixfold.training.options import HERE, LayoutsOptions
from helixfold.training.presets import initial_training, training_preset

# Ranks whose links are measured on the machine at hand: two show how long a message takes.
_PROBED = 2


def forecast(options: LayoutsOptions) -> Iterator[str]:
    """Yield a table for each number of ranks, then how far axial parallelism pays on each.

    Raise `InputError` if no layout fits, or if the machine at hand cannot be measured.
    """
    config = training_preset(options.preset).with_settings(options.settings)
    if options.machine != HERE:
        # The published rates are for bfloat16.
        config = replace(config, dtype="bfloat16")
    if options.parallel_blocks:
        config = replace(config, model=with_parallel_blocks(config.model))
    work = workload(config)
    if options.machine == HERE:
        yield "measuring this machine ..."
        machine = _measured(work, options.ranks)
    else:
        machine = machines.MACHINES[options.machine]
    size = work.needs.size
    yield (
        f"{options.preset}: {work.batch_size} samples a step, {size.residues} residues, {size.msa_rows} + "
        f"{size.templates} + {size.extra_rows:,} rows, {config.dtype}, {work.recycling_iterations:g} passes before the "
        f"one that learns; {machine.name}, {gib(machine.memory)} a rank"
    )
    if options.machine != HERE:
        yield "rates are data sheets', of which as much is reached as by NVIDIA's program in MLPerf HPC v3.0 on H100"
    statements = []
    for ranks in options.ranks:
        found = predictions(work, ranks, machine)
        yield f"\n{ranks:,} ranks"
        yield from table(found, best(found).layout)
        statements.append(where_axial_stops(found))
    yield ""
    yield from statements


def _measured(work: Workload, ranks: Sequence[int]) -> Machine:
    """Return the machine at hand, by short measurements."""
    if torch.cuda.is_available() and torch.cuda.device_count() < _PROBED:
        raise InputError(
            "links between GPUs can be measured where there are two of them; here is one, so plan with --machine h200"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = max(1, torch.get_num_threads() // _PROBED)
    return on_ranks(_PROBED, machine_of_ranks, work, work.sharings(ranks), device=device, threads=threads)


def published() -> Iterator[str]:
    """Yield a table of published runs: their published time of a step beside the predicted one."""
    yield f"{'':34}{'layout':24}{'published, s':>14}{'predicted, s':>14}{'of it':>8}"
    for run in machines.PUBLISHED:
        config: TrainingConfig = replace(
            initial_training(),
            dtype="bfloat16",
            batch_size=run.layout.dp,
            recompute=RecomputeConfig.everywhere("block" if run.recomputes else "none"),
        )
        seconds = predict(workload(config), run.layout, machines.MACHINES[run.machine]).seconds.total
        yield f"{run.source:34}{run.layout!s:24}{run.seconds:14.3f}{seconds:14.3f}{seconds / run.seconds:8.2f}"
    yield "The first of them fixes what share of an H100's rates the program reaches; the others are predicted."
