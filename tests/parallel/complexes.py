"""What ranks compute of a complex, beside what a process alone does: each function runs on every rank."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from helixfold.batch import MultimerBatch
from helixfold.config import OuterProductPosition
from helixfold.execution import spilled
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.confidence import aligned_error
from helixfold.model.outputs import Outputs
from helixfold.model.update import Executor
from helixfold.parallel.parallelize import parallelize
from tests.networks import random_complex, relative_error, tiny_multimer_config, with_every_parameter_random
from tests.parallel.hybrid import gradients, joined, order_on


def network(order: OuterProductPosition) -> AlphaFold:
    return with_every_parameter_random(tiny_multimer_config(order))


def results(model: AlphaFold, run: Executor, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """All results of two iterations on a complex of three chains."""
    batch = _in(dtype, random_complex())
    with torch.no_grad():
        previous = model.fold(run, [batch], None, dtype).recycled()
    outputs = model(run, [batch], previous, dtype)
    assert model.heads.aligned_error is not None
    error = aligned_error(run, model.heads.aligned_error, outputs.representations.pair, batch.seq_mask, batch.asym_id)
    assert error.iptm is not None
    return _floats(outputs, run) | {"ptm": error.ptm, "iptm": error.iptm}


def learn(model: AlphaFold, run: Executor) -> None:
    """Add the gradients of a weighted sum of all results, with dropout."""
    torch.manual_seed(1)
    found = results(model, run, torch.float64)
    weights = torch.Generator().manual_seed(2)
    sum((value * torch.randn(value.shape, generator=weights).to(value)).sum() for value in found.values()).backward()


def save_alone(path: Path, order: OuterProductPosition) -> None:
    """Save what a process alone computes: results in float32 and gradients in float64."""
    with torch.no_grad():
        predicted = results(network(order).eval(), Whole())
    model = network(order).double().train()
    learn(model, Whole())
    torch.save((predicted, gradients(model)), path)


def compare_on_ranks(
    layout: str, executors: Sequence[str], keeps: Sequence[Keep], directory: Path, alone: Path
) -> None:
    """Results and gradients are those of a process alone, however a rank computes its part."""
    spilled.LEAST_BYTES = 1
    choices = {"whole": Whole(), "slabs": Slabs(rows=2), "spilled": spilled.Spilled(directory)}
    predicted, right = torch.load(alone)
    with joined(layout) as mesh:
        order = order_on(mesh.layout, "first")
        for name in executors:
            with torch.no_grad():
                model = network(order).eval()
                found = results(model, parallelize(model, mesh, within=choices[name]))
            deviations = {each: relative_error(found[each], value) for each, value in predicted.items()}
            assert max(deviations.values()) < 1e-5, (name, deviations)
        for keep in keeps:
            model = network(order).double().train()
            learn(model, parallelize(model, mesh, RecomputeConfig.everywhere(keep)))
            summed = torch.cat([each.flatten() for each in gradients(model)])
            dist.all_reduce(summed)
            largest = max(float(each.abs().max()) for each in right)
            for flat, other in zip(summed.split([each.numel() for each in right]), right, strict=True):
                difference = (flat.view_as(other) / mesh.layout.sharing - other).abs().max()
                assert difference / other.abs().max().clamp(min=0.01 * largest) < 1e-9, keep


def _in(dtype: torch.dtype, batch: MultimerBatch) -> MultimerBatch:
    given = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{name: each.to(dtype) for name, each in given.items() if each.is_floating_point()})


def _floats(outputs: Outputs, run: Executor) -> dict[str, Tensor]:
    structure = outputs.structure
    logits = {field.name: getattr(outputs.logits, field.name) for field in fields(outputs.logits)}
    return logits | {
        "pair": run.gather(outputs.representations.pair),
        "msa": run.gather(outputs.representations.msa),
        "single": outputs.representations.single,
        "positions": structure.positions,
        "frames": structure.frames,
        "torsions": structure.unnormalized_torsions,
    }
