"""Two processes that share a device train as one does; on one GPU gloo sums their gradients, for NCCL refuses to."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.whole import Whole
from helixfold.losses.config import initial_training
from helixfold.losses.total import total_loss
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel.gradients import GradientReducer
from helixfold.parallel.launch import on_ranks
from helixfold.parallel.mesh import Mesh
from tests.gpu.devices import DEVICES
from tests.support.networks import relative_error, tiny_model, to_device

SAMPLES = 3  # so that one process has one more than the other
CPU = torch.device("cpu")


def learn(mesh: Mesh, device: str) -> tuple[np.ndarray, np.ndarray]:
    """The sum of the gradients of all samples and the parameters after a step, as the first process has them."""
    mesh = replace(mesh, device=torch.device(device))
    model = tiny_model().to(device)  # without dropout, whose random numbers a GPU draws differently
    optimizer = FlatOptimizer(model, OptimizerConfig(clipping="global"))
    gradients, own = GradientReducer(optimizer, mesh), mesh.micro_batches(SAMPLES)
    for index in own:
        torch.manual_seed(index)
        batch = random_batch(12, 4, 5, 1, CPU)
        labels = to_device(random_labels(batch), device)
        batch = to_device(batch, device)
        loss = total_loss(model(Whole(), [batch]), batch, labels, initial_training()).total.sum()
        gradients.backward(loss, last=index == own[-1])
    # Copies: a tensor would be shared with a process that has ended.
    gradient = optimizer.gradient_sum.cpu().numpy().copy()
    optimizer.step(1e-3, micro_batches=SAMPLES)
    return gradient, torch.cat([each.detach().flatten() for each in model.parameters()]).cpu().numpy()


@pytest.mark.parametrize("device", DEVICES)
def test_two_processes_on_one_device_train_as_one(device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if device == "cpu":
        from tests.support.forked_ranks import fork_ranks  # noqa: PLC0415 (needs more than a bare machine has)

        fork_ranks(monkeypatch, tmp_path / "printed.txt")
    gradient, parameters = map(torch.from_numpy, on_ranks(2, learn, device))
    right_gradient, right_parameters = map(torch.from_numpy, learn(Mesh.alone(), device))
    assert relative_error(gradient, right_gradient) < 1e-5
    # Adam's first update is of the learning rate's size however small a gradient is.
    assert float((parameters - right_parameters).abs().mean()) < 1e-6
