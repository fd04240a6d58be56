"""`helixfold benchmark layouts`: a training step of every layout that the cores can run, measured beside predicted."""

import argparse
from dataclasses import replace

import torch

from helixfold.execution.allocator import freed_memory_kept
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import RecomputeConfig
from helixfold.execution.stages import mean_seconds
from helixfold.inference import DTYPES
from helixfold.losses.config import initial_training
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Recycled
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel.gradients import GradientReducer
from helixfold.parallel.launch import on_ranks
from helixfold.parallel.layout import Layout
from helixfold.parallel.mesh import Mesh, make_mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.planning.layouts import Workload, machine_of_ranks, predict
from helixfold.planning.machines import Machine
from helixfold.planning.recompute_choice import KEEPS
from helixfold.planning.size import PassSize
from helixfold.planning.training import KEPT_BLOCKS, TrainingNeeds
from helixfold.predict.sizes import positive
from helixfold.presets import PRESETS, preset, with_parallel_blocks
from helixfold.training.memory import parameter_count


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=positive, nargs="+", default=[1, 2], metavar="N", help="processes of a layout")
    parser.add_argument("--preset", choices=list(PRESETS), default="model_1", help="of channels")
    parser.add_argument("--blocks", type=positive, default=4, help="of the Evoformer; the extra-MSA stack has one")
    parser.add_argument("--residues", type=positive, default=96)
    parser.add_argument("--rows", type=positive, default=32, help="of the MSA, without templates")
    parser.add_argument("--extra-rows", type=positive, default=64)
    parser.add_argument("--templates", type=int, choices=range(5), default=1)
    parser.add_argument("--keep", choices=KEEPS, default="none", help="what is recomputed")
    parser.add_argument("--passes", type=int, choices=range(4), default=1, help="before the one that learns")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    parser.add_argument("--repeats", type=positive, default=3, help="readings, of which the shortest counts")
    parser.set_defaults(run=_print)


def _print(options: argparse.Namespace) -> None:
    whole = preset(options.preset).model
    templates = options.templates if whole.template is not None else 0
    model = with_parallel_blocks(
        replace(
            whole,
            evoformer=replace(whole.evoformer, blocks=options.blocks),
            extra_msa=replace(whole.extra_msa, blocks=1),
            template=whole.template if templates else None,
        )
    )
    size = PassSize(
        residues=options.residues,
        msa_rows=options.rows,
        extra_rows=options.extra_rows,
        templates=templates,
        dtype=DTYPES[options.dtype],
    )
    # A step of one sample for each group of ranks that share one.
    work = Workload(
        needs=TrainingNeeds(model=model, size=size),
        recompute=RecomputeConfig.everywhere(options.keep),
        parts=1,
        passes=options.passes,
        parameters=parameter_count(model),
    )
    print(
        f"{options.preset} with {options.blocks} + 1 blocks in HelixFold's order, {size.residues} residues, "
        f"{size.msa_rows} + {size.templates} + {size.extra_rows} rows, {options.dtype}, {options.passes} passes before "
        "the one that learns; one thread a rank, one sample for each group of ranks that share one"
    )
    print(
        f"{'layout':18}{'measured, s':>12}{'predicted, s':>14}{'of it':>7}   {'passes':>9}{'messages':>10}"
        f"{'gradients':>11}{'optimizer':>11}"
    )
    for ranks in options.ranks:
        machine: Machine = on_ranks(ranks, machine_of_ranks, work, work.sharings([ranks]))
        for layout in work.layouts(ranks):
            seconds: float = on_ranks(ranks, _step_seconds, work, layout, options.repeats)
            found = predict(replace(work, parts=layout.dp), layout, machine).seconds
            print(
                f"{layout!s:18}{seconds:12.3f}{found.total:14.3f}{found.total / seconds:7.2f}   {found.passes:9.3f}"
                f"{found.messages:10.3f}{found.gradients:11.3f}{found.optimizer:11.3f}",
                flush=True,
            )


def _step_seconds(mesh: Mesh, work: Workload, layout: Layout, repeats: int) -> float:
    """Return the shortest of some steps, after one that is not counted."""
    torch.manual_seed(0)
    if mesh.size > 1:
        mesh = make_mesh(layout, mesh.device)
    with freed_memory_kept(KEPT_BLOCKS):
        model, size = AlphaFold(work.needs.model).train(), work.needs.size
        run = parallelize(model, mesh, work.recompute).run
        losses, dtype = initial_training(), size.dtype
        optimizer = FlatOptimizer(model, OptimizerConfig(clipping="global"), working_dtype=dtype)
        gradients = GradientReducer(optimizer, mesh)
        batch = random_batch(size.residues, size.msa_rows, size.extra_rows, size.templates, mesh.device)
        labels = random_labels(batch)

        def step() -> None:
            previous: Recycled | None = None
            with torch.no_grad():
                for _ in range(int(work.passes)):
                    previous = model.fold(run, [batch], previous, dtype).recycled()
            found = total_loss(model(run, [batch], previous, dtype), batch, labels, losses)
            gradients.backward(found.total.mean(), last=True)
            optimizer.step(1e-3, parts=mesh.size)

        readings = []
        for _ in range(repeats + 1):
            mesh.barrier()
            readings.append(mean_seconds(step))
    return min(readings[1:])
