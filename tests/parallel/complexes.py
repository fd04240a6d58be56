"""What ranks compute of a complex, beside what a process alone does: each function runs on every rank."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from helixfold.execution import spilled
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.folding.residue_offsets import offsets_with_rings
from helixfold.losses.chain_permutation import permuted_labels
from helixfold.losses.config import complexes, finetuning
from helixfold.losses.labels import ComplexLabels
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import MultimerBatch
from helixfold.model.confidence import aligned_error
from helixfold.model.config import OuterProductPosition
from helixfold.model.outputs import Outputs
from helixfold.model.update import Executor
from helixfold.parallel.parallelize import parallelize
from tests.losses.complexes import a_complex, labels_of_complex, random_truth
from tests.parallel.hybrid import gradients, joined, order_on
from tests.support.networks import relative_error, tiny_multimer_config, with_every_parameter_random

RESIDUES = 15  # divides by neither 2 nor 4
# Every term of the loss.
LOSS = replace(complexes(finetuning()), smooth_lddt=1.0)
Tensors = TypeVar("Tensors", MultimerBatch, ComplexLabels)


def network(order: OuterProductPosition) -> AlphaFold:
    return with_every_parameter_random(tiny_multimer_config(order))


def results(model: AlphaFold, run: Executor) -> dict[str, Tensor]:
    """All results of two iterations on a complex of three chains, of which two are equal."""
    batch = _complex(torch.float32)
    return _floats(model, run, batch, _outputs(model, run, batch, torch.float32))


def learn(model: AlphaFold, run: Executor) -> Tensor:
    """Add the gradients of the loss and of a weighted sum of all results, with dropout; return the loss."""
    torch.manual_seed(1)
    batch = _complex(torch.float64)
    outputs = _outputs(model, run, batch, torch.float64)
    labels = _in(torch.float64, labels_of_complex(batch, *random_truth(batch, seed=3)))
    # Ranks have to agree on which equal chains are exchanged.
    permuted = permuted_labels(outputs.structure, batch, labels)
    assert not torch.equal(permuted.all_atom_positions, labels.all_atom_positions)
    loss = total_loss(outputs, batch, labels, LOSS).total.sum()
    weights = torch.Generator().manual_seed(2)
    found = _floats(model, run, batch, outputs).values()
    weighted = sum((value * torch.randn(value.shape, generator=weights).to(value)).sum() for value in found)
    (loss + weighted).backward()
    return loss.detach()


def save_alone(path: Path, order: OuterProductPosition) -> None:
    """Save what a process alone computes: results in float32, loss and gradients in float64."""
    with torch.no_grad():
        predicted = results(network(order).eval(), Whole())
    model = network(order).double().train()
    loss = learn(model, Whole())
    torch.save((predicted, loss, gradients(model)), path)


def compare_on_ranks(
    layout: str, executors: Sequence[str], keeps: Sequence[Keep], directory: Path, alone: Path
) -> None:
    """Results, loss and gradients are those of a process alone, however a rank computes its part."""
    spilled.MIN_BYTES = 1
    choices = {"whole": Whole(), "slabs": Slabs(rows=4), "spilled": spilled.Spilled(directory)}
    predicted, expected, right = torch.load(alone)
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
            loss = learn(model, parallelize(model, mesh, RecomputeConfig.everywhere(keep)))
            assert relative_error(loss, expected) < 1e-9, (keep, loss, expected)
            summed = torch.cat([each.flatten() for each in gradients(model)])
            dist.all_reduce(summed)
            largest = max(float(each.abs().max()) for each in right)
            for flat, other in zip(summed.split([each.numel() for each in right]), right, strict=True):
                difference = (flat.view_as(other) / mesh.layout.sharing - other).abs().max()
                assert difference / other.abs().max().clamp(min=0.01 * largest) < 1e-9, keep


def _complex(dtype: torch.dtype) -> MultimerBatch:
    batch = a_complex("ABA", RESIDUES)
    # The second chain is a ring.
    numbers, chains = batch.residue_index[0].numpy(), batch.asym_id[0].numpy() - 1
    return _in(dtype, replace(batch, offsets=torch.from_numpy(offsets_with_rings(numbers, chains, [1]))[None]))


def _in(dtype: torch.dtype, tensors: Tensors) -> Tensors:
    given = {field.name: getattr(tensors, field.name) for field in fields(tensors)}
    return replace(
        tensors,
        **{name: each.to(dtype) for name, each in given.items() if each is not None and each.is_floating_point()},
    )


def _outputs(model: AlphaFold, run: Executor, batch: MultimerBatch, dtype: torch.dtype) -> Outputs:
    with torch.no_grad():
        previous = model.fold(run, [batch], None, dtype).recycled()
    return model(run, [batch], previous, dtype)


def _floats(model: AlphaFold, run: Executor, batch: MultimerBatch, outputs: Outputs) -> dict[str, Tensor]:
    structure = outputs.structure
    logits = {field.name: getattr(outputs.logits, field.name) for field in fields(outputs.logits)}
    assert model.heads.aligned_error is not None
    error = aligned_error(run, model.heads.aligned_error, outputs.representations.pair, batch.seq_mask, batch.asym_id)
    assert error.iptm is not None
    return logits | {
        "pair": run.gather(outputs.representations.pair),
        "msa": run.gather(outputs.representations.msa),
        "single": outputs.representations.single,
        "positions": structure.positions,
        "frames": structure.frames,
        "torsions": structure.unnormalized_torsions,
        "ptm": error.ptm,
        "iptm": error.iptm,
    }
