"""Measure and predict a training step for `helixfold benchmark layouts`, by each layout of the ranks."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch

from helixfold.annotations import Parameter
from helixfold.benchmark.options import Model
from helixfold.execution.allocator import keeping_freed_memory
from helixfold.execution.dtypes import DTYPES
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.execution.stages import mean_seconds
from helixfold.losses.config import initial_training
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Recycled
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.options import Positive
from helixfold.parallel.gradients import GradientReducer
from helixfold.parallel.launch import on_ranks
from helixfold.parallel.layout import Layout
from helixfold.parallel.mesh import Mesh, make_mesh
from helixfold.parallel.parallelize import parallelize
from helixfold.planning.layouts import Workload, machine_of_ranks, predict
from helixfold.planning.machines import Machine
from helixfold.planning.size import PassSize
from helixfold.planning.training import KEPT_BLOCKS, TrainingNeeds
from helixfold.predict.options import Dtype
from helixfold.presets import preset, with_parallel_blocks
from helixfold.training.forecast import parameter_count


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LayoutOptions:
    """Options of `helixfold benchmark layouts`."""

    ranks: Annotated[tuple[Positive, ...], Parameter(metavar="N...")] = (1, 2)
    """Numbers of processes."""
    preset: Model = "model_1"
    """Model whose channels are taken."""
    blocks: Positive = 4
    """Blocks of the Evoformer; the extra-MSA stack has one."""
    residues: Positive = 96
    """Number of residues."""
    rows: Positive = 32
    """MSA rows, not counting templates."""
    extra_rows: Positive = 64
    """Extra MSA rows."""
    templates: Literal[0, 1, 2, 3, 4] = 1
    """Number of templates."""
    keep: Keep = "none"
    """Checkpoint policy: what the backward pass recomputes."""
    passes: Literal[0, 1, 2, 3] = 1
    """Recycling iterations without gradients before the last one."""
    dtype: Dtype = "float32"
    """Precision."""
    repeats: Positive = 3
    """Number of measurements; the shortest is reported."""


_USUAL = LayoutOptions()


def run(options: LayoutOptions = _USUAL) -> None:
    """Print the measured and the predicted seconds of a training step for each layout."""
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
    # A step has one sample for each data-parallel group of ranks.
    work = Workload(
        needs=TrainingNeeds(model=model, size=size),
        recompute=RecomputeConfig.everywhere(options.keep),
        micro_batches=1,
        recycling_iterations=options.passes,
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
            found = predict(replace(work, micro_batches=layout.dp), layout, machine).seconds
            print(
                f"{layout!s:18}{seconds:12.3f}{found.total:14.3f}{found.total / seconds:7.2f}   {found.passes:9.3f}"
                f"{found.messages:10.3f}{found.gradients:11.3f}{found.optimizer:11.3f}",
                flush=True,
            )


def _step_seconds(mesh: Mesh, work: Workload, layout: Layout, repeats: int) -> float:
    """Return the seconds of the fastest of `repeats` steps, after a first one that is not counted."""
    torch.manual_seed(0)
    if mesh.size > 1:
        mesh = make_mesh(layout, mesh.device)
    with keeping_freed_memory(KEPT_BLOCKS):
        model, size = AlphaFold(work.needs.model).train(), work.needs.size
        run = parallelize(model, mesh, work.recompute)
        losses, dtype = initial_training(model.config.method), size.dtype
        optimizer = FlatOptimizer(model, OptimizerConfig(clipping="global"), working_dtype=dtype)
        gradients = GradientReducer(optimizer, mesh)
        batch = random_batch(
            size.residues, size.msa_rows, size.extra_rows, size.templates, mesh.device, method=model.config.method
        )
        labels = random_labels(batch)

        def step() -> None:
            previous: Recycled | None = None
            with torch.no_grad():
                for _ in range(int(work.recycling_iterations)):
                    previous = model.fold(run, [batch], previous, dtype).recycled()
            found = total_loss(model(run, [batch], previous, dtype), batch, labels, losses)
            gradients.backward(found.total.mean(), last=True)
            optimizer.step(1e-3, micro_batches=mesh.size)

        readings = []
        for _ in range(repeats + 1):
            mesh.barrier()
            readings.append(mean_seconds(step))
    return min(readings[1:])
