"""`helixfold layouts`: what a step of a training run takes by how its ranks are divided, predicted."""

import argparse
from dataclasses import replace

import torch

from data_pipeline.errors import InputError
from helixfold.execution.recompute import RecomputeConfig
from helixfold.parallel.launch import on_ranks
from helixfold.planning import machines
from helixfold.planning.layouts import Workload, best, machine_of_ranks, predict, predictions, table, where_axial_stops
from helixfold.planning.machines import Machine
from helixfold.planning.size import gib
from helixfold.predict.sizes import positive
from helixfold.presets import with_parallel_blocks
from helixfold.training.config import TrainingConfig
from helixfold.training.memory import workload
from helixfold.training.presets import TRAINING_PRESETS, initial_training, training_preset

HERE = "here"
_RANKS = (128, 256, 512, 2048)
# Ranks whose links are measured where a machine is: two say how long a message takes.
_PROBED = 2


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe `helixfold layouts` to the command line."""
    parser = commands.add_parser(
        "layouts",
        help="what a training step takes by how ranks are divided, predicted",
        description="Predict seconds and memory of a training step for every way to divide ranks: dp groups with "
        "samples of their own, of each the two branches of blocks (bp) and parts of streams (dap). What a rank "
        "computes, sends and holds is counted by running it without numbers; rates of named machines are published "
        "ones, in bfloat16.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--preset", default="initial_training", choices=TRAINING_PRESETS, help="the training run")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a setting of it, such as batch_size=256",
    )
    parser.add_argument("--ranks", type=positive, nargs="+", default=list(_RANKS), metavar="N")
    parser.add_argument(
        "--machine",
        choices=(*machines.NAMES, HERE),
        default="h100",
        help="nodes of eight GPUs, or this machine, measured",
    )
    parser.add_argument(
        "--parallel-blocks",
        action="store_true",
        help="what if the outer product stood at the end of blocks, so that their branches can be parallel",
    )
    parser.add_argument(
        "--published",
        action="store_true",
        help="predict runs that others published, beside what they measured, and end",
    )
    parser.set_defaults(run=_layouts)


def _layouts(options: argparse.Namespace) -> None:
    if options.published:
        _print_published()
        return
    config = training_preset(options.preset).with_settings(options.set)
    if options.machine != HERE:
        # What their rates are known in.
        config = replace(config, dtype="bfloat16")
    if options.parallel_blocks:
        config = replace(config, model=with_parallel_blocks(config.model))
    work = workload(config)
    machine = _here(work, options.ranks) if options.machine == HERE else machines.named(options.machine)
    size = work.needs.size
    print(
        f"{options.preset}: {work.batch_size} samples a step, {size.residues} residues, {size.msa_rows} + "
        f"{size.templates} + {size.extra_rows:,} rows, {config.dtype}, {work.passes:g} passes before the one that "
        f"learns; {machine.name}, {gib(machine.memory)} a rank"
    )
    if options.machine != HERE:
        print("rates are data sheets', of which as much is reached as by NVIDIA's program in MLPerf HPC v3.0 on H100")
    statements = []
    for ranks in options.ranks:
        found = predictions(work, ranks, machine)
        chosen = best(found).layout
        print(f"\n{ranks:,} ranks")
        print("\n".join(table(found, chosen)))
        statements.append(where_axial_stops(found))
    print("\n" + "\n".join(statements))


def _here(work: Workload, ranks: list[int]) -> Machine:
    """Return the machine at hand, by short readings."""
    if torch.cuda.is_available() and torch.cuda.device_count() < _PROBED:
        raise InputError(
            "links between GPUs can be measured where there are two of them; here is one, so plan with --machine h200"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print("measuring this machine ...", flush=True)
    threads = max(1, torch.get_num_threads() // _PROBED)
    found: Machine = on_ranks(_PROBED, machine_of_ranks, work, work.sharings(ranks), device=device, threads=threads)
    return found


def _print_published() -> None:
    print(f"{'':34}{'layout':24}{'published, s':>14}{'predicted, s':>14}{'of it':>8}")
    for run in machines.PUBLISHED:
        config: TrainingConfig = replace(
            initial_training(),
            dtype="bfloat16",
            batch_size=run.layout.dp,
            recompute=RecomputeConfig.everywhere("block" if run.recomputes else "none"),
        )
        found = predict(workload(config), run.layout, machines.named(run.machine))
        seconds = found.seconds.total
        print(f"{run.source:34}{run.layout!s:24}{run.seconds:14.3f}{seconds:14.3f}{seconds / run.seconds:8.2f}")
    print("The first of them fixes what share of an H100's rates the program reaches; the others are predicted.")
