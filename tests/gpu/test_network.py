"""Blocks, batches, spilled streams and a training step give on a GPU what they give elsewhere; graphs replay them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helixfold.benchmark.block import evoformer, random_streams
from helixfold.benchmark.measurement import replayed
from helixfold.execution import spilled
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.spilled_stream import SpilledStream
from helixfold.execution.whole import Whole
from helixfold.folding.options import FoldingOptions
from helixfold.losses.config import finetuning
from helixfold.losses.total import total_loss
from helixfold.model.batch import Batch
from helixfold.ops.dispatch import forced
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from tests.folding.test_together import alone, targets, together
from tests.gpu.cases import CASES, REAL, SMALL, Size
from tests.gpu.devices import DEVICES, on_devices
from tests.support.networks import relative_error, tiny_model, to_device

pytest.importorskip("triton")
CPU = torch.device("cpu")
UPDATES = ["row attention", "triangle attention", "triangle update", "pair transition", "outer product"]


def batch_with_templates(residues: int, rows: int, extra_rows: int) -> Batch:
    """A batch whose two templates lack the first residue.

    Its omega and phi are those of atoms that are not there: the angles of rounding errors, which AlphaFold embeds too
    and which differ between devices. No other residue attends to where a template lacks one.
    """
    batch = random_batch(residues, rows, extra_rows, 2, CPU)
    batch.template_all_atom_masks[:, :, 0] = 0
    return batch


def changed_in_place(given: list[Tensor]) -> None:
    with torch.no_grad():
        for each in given:
            each.mul_(0.5).add_(0.25)


def assert_replayed(action: Callable[[], object], inputs: list[Tensor], device: str) -> None:
    """A replay after the inputs changed in memory gives, bit for bit, what a call gives."""
    replay = replayed(action, torch.device(device))
    replay()
    changed_in_place(inputs)
    found, expected = replay(), action()
    for ours, theirs in zip(as_list(found), as_list(expected), strict=True):
        assert ours.isfinite().all()
        assert torch.equal(ours, theirs)


def as_list(given: object) -> list[Tensor]:
    return [given] if isinstance(given, Tensor) else [each for each in given if isinstance(each, Tensor)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("gradients", [False, True])
# On a CPU, nothing is captured.
@pytest.mark.parametrize(("device", "size"), on_devices([SMALL], [REAL[0], REAL[3]], cpu_marks=[pytest.mark.long]))
def test_a_graph_of_an_operator_is_replayed(device: str, size: Size, gradients: bool, name: str) -> None:
    with torch.device(device):
        arguments = CASES[name].make(size, False)
    for number, each in enumerate(arguments):
        if isinstance(each, Tensor) and each.requires_grad:
            arguments[number] = each.detach().bfloat16().requires_grad_()
    leaves = [each for each in arguments if isinstance(each, Tensor) and each.requires_grad]

    def action() -> object:
        with torch.set_grad_enabled(gradients):
            found = CASES[name].run(*arguments)
            return torch.autograd.grad(found, leaves, torch.ones_like(found)) if gradients else found

    assert_replayed(action, leaves, device)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("device", "sizes"), on_devices([("tiny", 7, 5)], [("model_1", 256, 128), ("tiny", 65, 33)]))
def test_a_graph_of_a_block_is_replayed(
    device: str, sizes: tuple[str, int, int], dtype: torch.dtype, gradients: bool
) -> None:
    name, residues, rows = sizes
    stack = evoformer(name, 1, torch.device(device)).requires_grad_(gradients)
    msa, pair, *masks = random_streams(name, residues, rows, dtype, torch.device(device))
    leaves = [each.requires_grad_(gradients) for each in (msa, pair)]

    def action() -> object:
        with torch.set_grad_enabled(gradients):
            found = stack(Whole(), msa, pair, *masks)
            asked = [*leaves, *stack.parameters()]
            return torch.autograd.grad(found, asked, [torch.ones_like(each) for each in found]) if gradients else found

    assert_replayed(action, leaves, device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("device", "sizes"), on_devices([("tiny", 9, 5, 2)], [("model_1", 300, 65, 37)]))
def test_a_block_with_spilled_streams_gives_the_same_bits_as_slabs(
    device: str, sizes: tuple[str, int, int, int], dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spilled, "MIN_BYTES", 0)
    monkeypatch.setattr(spilled, "MIN_CHANNELS", 0)
    name, residues, alignment, slab = sizes
    on = torch.device(device)
    stack = evoformer(name, 1, on)
    msa, pair, *masks = random_streams(name, residues, alignment, dtype, on)
    with torch.no_grad():
        found, expected = (
            stack(run, *(run.map_rows(lambda _, rows: rows.clone(), each) for each in (msa, pair)), *masks)
            for run in (Spilled(tmp_path, rows=slab, device=on), Slabs(rows=slab))
        )
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        assert isinstance(ours, SpilledStream)
        assert torch.equal(ours.gather().to(device), theirs)


@pytest.mark.parametrize("device", DEVICES)
def test_targets_folded_as_a_batch_are_what_they_are_alone(device: str) -> None:
    model, options = tiny_model().to(device), FoldingOptions(num_recycles=1)
    given = targets((5, 13, 2), (1, 20, 0), (40, 9, 1))
    for prediction, target in zip(together(given, options, model), given, strict=True):
        expected = alone(target, options, model)
        ours, theirs = (torch.as_tensor(each.protein.atom_positions) for each in (prediction, expected))
        assert relative_error(ours, theirs) < 1e-4


@pytest.mark.parametrize("device", DEVICES)
def test_a_training_step_is_that_of_a_cpu(device: str) -> None:
    """Losses, all gradients and the updated parameters, after a recycling iteration; float32, all losses on."""
    batch = batch_with_templates(24, 6, 9)
    labels = random_labels(batch)

    def learn(on: str) -> tuple[Tensor, Tensor, Tensor]:
        model = tiny_model().to(on)  # without dropout, whose random numbers a GPU draws differently
        optimizer = FlatOptimizer(model, OptimizerConfig(clipping="global"))
        given, truth = to_device(batch, on), to_device(labels, on)
        with torch.no_grad():
            previous = model.fold(Whole(), [given], None, torch.float32).recycled()
        loss = total_loss(model(Whole(), [given], previous, torch.float32), given, truth, finetuning()).total.sum()
        optimizer.backward(loss)
        optimizer.collect()
        gradient = optimizer.gradient_sum.clone()
        optimizer.step(1e-3, micro_batches=1)
        return (
            loss.detach().cpu(),
            gradient.cpu(),
            torch.cat([each.detach().flatten() for each in model.parameters()]).cpu(),
        )

    (loss, gradient, parameters), (right_loss, right_gradient, right_parameters) = learn(device), learn("cpu")
    assert float(loss) == pytest.approx(float(right_loss), rel=1e-4)
    assert relative_error(gradient, right_gradient) < 1e-3
    assert float((gradient - right_gradient).norm()) < 1e-3 * float(right_gradient.norm())
    # Adam's first update is of the learning rate's size however small a gradient is.
    assert float((parameters - right_parameters).abs().mean()) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
def test_a_pass_of_the_whole_network_is_near_that_of_a_cpu(device: str) -> None:
    batch = batch_with_templates(33, 9, 17)
    with torch.no_grad():
        model = tiny_model()
        with forced("reference"):
            expected = model(Whole(), [batch])
        found = model.to(device)(Whole(), [to_device(batch, device)])
    assert relative_error(found.representations.pair.cpu(), expected.representations.pair) < 1e-4
    assert relative_error(found.structure.positions.cpu(), expected.structure.positions) < 1e-3
