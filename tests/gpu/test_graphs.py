"""Replayed CUDA graphs give the same recycling iterations, bit for bit; on a CPU operators are captured instead."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helixfold.execution.graphs import Capturer, GraphCache, GraphCapturer
from helixfold.execution.iteration_runner import IterationRunner
from helixfold.execution.nested import tensors
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import Keep, RecomputeConfig, recompute
from helixfold.execution.whole import Whole
from helixfold.losses.config import finetuning
from helixfold.losses.total import total_loss
from helixfold.model.outputs import Recycled
from helixfold.model.presets import preset
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.dispatch import forced
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel.gradients import GradientReducer
from helixfold.parallel.mesh import Mesh
from helixfold.training.step import CapturedGradients
from helixfold.weights.untrained import untrained_model
from tests.gpu.devices import on_devices
from tests.support.operator_graphs import OperatorCapturer

# In the tier integration, test_iteration_runner.py and test_captured_step.py capture operators.
CPU_MARKS = [pytest.mark.long]


def capturer(device: str) -> Capturer:
    return GraphCapturer(torch.device(device)) if device == "cuda" else OperatorCapturer()


def arithmetic(device: str) -> AbstractContextManager[object]:
    """CPU kernels choose elements by their values, which nothing that is recorded can do."""
    return forced("reference") if device == "cpu" else nullcontext()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("device", "sizes"),
    on_devices([("tiny", 9, 5, 7, 2)], [("model_1", 128, 64, 128, 4), ("tiny", 65, 33, 1, 0)], cpu_marks=CPU_MARKS),
)
@torch.no_grad()
def test_a_replayed_prediction_is_the_launched_one(
    device: str, sizes: tuple[str, int, int, int, int], dtype: torch.dtype
) -> None:
    name, *shape = sizes
    on, graphs = torch.device(device), GraphCache(capturer(device), say=pytest.fail)
    model = untrained_model(preset(name).model, seed=0).to(on).eval()
    runner, found, expected = IterationRunner(graphs), list[Recycled](), list[Recycled]()
    with arithmetic(device):
        for _ in range(4):
            batch = random_batch(*shape, on)
            found.append(runner(model, Whole(), [batch], found[-1] if found else None, dtype).recycled())
            before = expected[-1] if expected else None
            expected.append(model.fold(Whole(), [batch], before, dtype).recycled())
    assert runner.replays == 2
    for ours, theirs in zip(tensors(found), tensors(expected), strict=True):
        assert ours.isfinite().all()
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("keep", "dtype"), [("none", torch.float32), ("block", torch.bfloat16)])
@pytest.mark.parametrize(
    ("device", "sizes"),
    on_devices([("tiny", 12, 5, 7, 2)], [("model_1", 128, 64, 128, 4), ("tiny", 64, 32, 64, 4)], cpu_marks=CPU_MARKS),
)
def test_a_replayed_training_step_is_the_launched_one(
    device: str, sizes: tuple[str, int, int, int, int], keep: Keep, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses, gradients and parameters after steps with one or two recycling iterations, and with dropout."""
    if device == "cpu":
        for module in ("ops.mask_bias", "optim.flat"):
            monkeypatch.setattr(f"helixfold.{module}.properties_of", lambda _: DEVICE_MODELS["h100"])
    name, *shape = sizes
    on = torch.device(device)
    config = preset(name).model
    # One block of each kind: autograd's memory of more would tell nothing else.
    config = replace(config, evoformer=replace(config.evoformer, blocks=1))
    batches = [random_batch(*shape, on) for _ in range(4)]
    labels = [random_labels(batch) for batch in batches]

    def trained(graphs: GraphCache | None) -> list[Tensor]:
        model = untrained_model(config, seed=0).to(on).train()
        recompute(model, RecomputeConfig.everywhere(keep))
        optimizer = FlatOptimizer(model, OptimizerConfig(clipping="sample"), working_dtype=dtype)
        reducer = GradientReducer(optimizer, Mesh.alone(on))
        captured = graphs if graphs is None else CapturedGradients(model, Whole(), reducer, finetuning(), graphs)
        found = []
        for number, (batch, truth) in enumerate(zip(batches, labels, strict=True)):
            torch.manual_seed(number)
            inputs = [batch] * (1 + number % 2)
            if captured is not None:
                terms = captured(inputs, truth, dtype)
                reducer.collect(last=True)
            else:
                previous = None
                with torch.no_grad():
                    for each in inputs[:-1]:
                        previous = model.fold(Whole(), [each], previous, dtype).recycled()
                losses = total_loss(model(Whole(), inputs[-1:], previous, dtype), batch, truth, finetuning())
                reducer.backward(losses.total.mean(), last=True)
                terms = losses.terms()
            found += [*terms.values(), optimizer.gradient_sum.clone()]
            optimizer.step(1e-3, micro_batches=1)
        return [*found, optimizer.tensors()["master"]]

    with arithmetic(device):
        graphs = GraphCache(capturer(device), say=pytest.fail)
        found, expected = trained(graphs), trained(None)
    assert graphs.replays == 2
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.isfinite().all()
        assert torch.equal(ours, theirs)
