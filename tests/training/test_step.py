"""A part's losses: recycled before, with dropout of its own, and gradients through the last pass alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from data_pipeline.training_sets.examples import TrainingDataset
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.training.loader import TrainingBatch, pack
from helixfold.training.step import forward_losses
from tests.data_pipeline.training_sets.memory_store import small_store
from tests.support.networks import tiny_model
from tests.training.runs import small_config

pytestmark = pytest.mark.usefixtures("operators_on_small_tensors")

CONFIG = small_config(model=tiny_model().config)


def batch_of(passes: int) -> TrainingBatch:
    dataset = TrainingDataset(store=small_store(6), config=replace(CONFIG.example, max_passes=passes))
    step = next(step for step in range(20) if dataset.num_passes(step) == passes)
    return pack(dataset.draw(step), None).on(torch.device("cpu"))


@pytest.fixture
def batch() -> TrainingBatch:
    """One with two passes."""
    return batch_of(2)


def total(model: AlphaFold, batch: TrainingBatch, **settings: Any) -> float:
    return float(forward_losses(model, batch, replace(CONFIG, **settings), Whole()).total.detach())


def test_dropout_is_a_function_of_seed_step_and_part(batch: TrainingBatch) -> None:
    model = tiny_model().train()
    first = total(model, batch)
    torch.manual_seed(1)
    assert total(model, batch) == first
    others = [
        total(model, replace(batch, micro_batch=batch.micro_batch + 1)),
        total(model, replace(batch, step=batch.step + 1)),
        total(model, batch, seed=1),
    ]
    assert len({first, *others}) == 4
    model.eval()
    assert total(model, batch) == total(model, replace(batch, micro_batch=batch.micro_batch + 1))


def test_each_pass_starts_from_the_one_before() -> None:
    model, batch = tiny_model().eval(), batch_of(3)
    losses = [total(model, replace(batch, recycling_inputs=batch.recycling_inputs[first:])) for first in range(3)]
    assert len(set(losses)) == 3


def test_gradients_flow_through_the_last_pass_alone(batch: TrainingBatch) -> None:
    model = tiny_model().eval()
    grad_enabled: list[bool] = []
    model.evoformer.register_forward_hook(lambda *_: grad_enabled.append(torch.is_grad_enabled()))
    assert forward_losses(model, batch, CONFIG, Whole()).total.requires_grad
    assert grad_enabled == [False, True]
