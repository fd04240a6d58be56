"""What is counted is what tensors hold and operators do, and remembered layouts are those of PyTorch."""

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.execution import counter as subject
from helixfold.execution.counter import Counter, counted_as_offloaded
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.whole import Whole
from helixfold.losses.config import initial_training
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.ops.card import CARDS, described
from helixfold.planning.prediction import META
from tests.support.networks import tiny_config

KIB = 2**10


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_live_bytes_and_their_peak(device: str) -> None:
    with Counter("first") as counter:
        one = torch.empty(KIB, dtype=torch.uint8, device=device)
        view = one[: KIB // 2]
        assert counter.live == KIB
        del one
        assert counter.live == KIB
        two = torch.empty(2 * KIB, dtype=torch.uint8, device=device)
        del view
        assert (counter.live, counter.peak) == (2 * KIB, 3 * KIB)
        counter.begin("second")
        assert counter.peak == 2 * KIB
        with counted_as_offloaded():
            away = torch.empty(5 * KIB, dtype=torch.uint8, device=device)
        assert (counter.live, counter.offloaded) == (2 * KIB, 5 * KIB)
        del two, away
        gc.collect()
        counter.begin("")
    assert (counter.live, counter.offloaded, counter.peak_offloaded) == (0, 0, 5 * KIB)
    assert counter.peaks == {"first": 3 * KIB, "second": 2 * KIB}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_products_moves_and_launches(device: str) -> None:
    left, right = torch.ones(3, 4, 5, device=device), torch.ones(3, 5, 7, device=device)
    with Counter() as counter:
        found = left @ right
        found.transpose(1, 2)
    assert counter.products == 2 * 3 * 4 * 5 * 7
    assert counter.moved == 4 * 3 * (4 * 5 + 5 * 7 + 4 * 7)
    assert counter.launches == 1


def test_products_that_are_added_in_place_count() -> None:
    total, left, right = torch.ones(4, 7), torch.ones(4, 5), torch.ones(5, 7)
    with Counter() as counter:
        total.addmm_(left, right)
    assert counter.products == 2 * 4 * 5 * 7


def test_counting_changes_nothing() -> None:
    x = torch.randn(8, 8, requires_grad=True)
    with Counter():
        counted = torch.autograd.grad((x @ x).softmax(-1).square().sum(), x)[0]
    assert torch.equal(counted, torch.autograd.grad((x @ x).softmax(-1).square().sum(), x)[0])


def test_remembered_layouts_are_those_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """All those of a training pass, on a processor and on a card."""
    repeated: set[str] = set()
    result = subject._result

    def layouts(value: Any) -> list[Any]:
        outputs = value if isinstance(value, tuple | list) else (value,)
        return [(each.shape, each.stride(), each.dtype) if isinstance(each, Tensor) else each for each in outputs]

    def checked(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entries = len(subject._known)
        found = result(operator, args, kwargs)
        if operator.written is None and len(subject._known) == entries:
            assert layouts(found) == layouts(operator.run(*args, **kwargs)), (operator.run, args)
            repeated.add(operator.name)
        return found

    monkeypatch.setattr(subject, "_result", checked)
    monkeypatch.setattr(subject, "_known", {})
    config = tiny_config()
    assert config.template is not None
    template = replace(config.template, unit_vectors=True, initial_frames=True)
    for card in ("cpu", "h200"):
        with described(CARDS[card]), META, Counter():
            model = AlphaFold(replace(config, template=template)).train()
            batch = random_batch(9, 4, 5, 2, META)
            outputs = model(Whole(), [batch], None, torch.float32)
            loss: Tensor = total_loss(outputs, batch, random_labels(batch), initial_training()).total.sum()
            loss.backward()
    assert {"mul", "mm", "bmm", "cat", "native_layer_norm", "linalg_cross", "prod"} <= repeated


def test_other_layouts_of_the_same_arguments_are_not_mixed_up() -> None:
    with Counter(), META:
        rows = torch.empty(4, 6)
        assert (rows + rows).stride() == (6, 1)
        assert (rows.T + rows.T).stride() == (1, 6)
        square = torch.empty(5, 5)
        assert square.add(1).stride() == (5, 1)
        assert square.T.add(1).stride() == (1, 5)
        whole = torch.empty(3, dtype=torch.int64)
        assert whole.mul(2).dtype == torch.int64
        assert whole.mul(2.0).dtype == torch.float32
        assert whole.mul(True).dtype == torch.int64


def test_repeated_calls_do_not_reach_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_known", {})
    with Counter(), META:
        for _ in range(3):
            (torch.ones(4, 5) @ torch.ones(5, 6)).softmax(-1)
            entries = len(subject._known)
    assert entries == 4
