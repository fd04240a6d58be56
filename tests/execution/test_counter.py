"""What is counted is what tensors hold and operators do, and what is known of operators is what PyTorch says."""

import gc
from dataclasses import replace
from typing import Any

import numpy as np
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
from helixfold.ops.device_properties import DEVICE_MODELS, simulated_device
from helixfold.planning.passes import META
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


def test_operators_that_change_a_shape_in_place_do_so_on_the_meta_device() -> None:
    with Counter():
        # A product of a vector and a matrix removes a dim in place.
        assert (torch.ones(7, device="meta") @ torch.ones(7, 3, device="meta", requires_grad=True)).shape == (3,)
        assert torch.ones(1, 3, device="meta").t_().shape == (3, 1)


def test_counting_changes_nothing() -> None:
    x = torch.randn(8, 8, requires_grad=True)
    with Counter():
        counted = torch.autograd.grad((x @ x).softmax(-1).square().sum(), x)[0]
    assert torch.equal(counted, torch.autograd.grad((x @ x).softmax(-1).square().sum(), x)[0])


def test_what_is_known_of_operators_is_what_pytorch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """All those of a training pass, on a processor and on a card."""
    compared: set[str] = set()
    simple = subject._simple

    def layouts(value: Any) -> list[tuple[Any, ...]]:
        outputs = value if isinstance(value, tuple) else (value,)
        return [(tuple(each.shape), tuple(each.stride()), each.dtype) for each in outputs]

    def checked(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known, func = simple(operator, args, kwargs), operator.run
        if known is not None:
            said = layouts(func(*args, **kwargs))
            mine = [known] if isinstance(known[-1], torch.dtype) else list(known)
            for ours, theirs in zip(mine, said, strict=True):
                sizes = [size > 1 for size in theirs[0]]
                assert (ours[0], ours[2]) == (theirs[0], theirs[2]), (func, args)
                # Strides of dims of one element mean nothing; statistics' dtype is the device's own affair.
                mine_strides, said_strides = (
                    [each for each, counts in zip(found[1], sizes, strict=True) if counts] for found in (ours, theirs)
                )
                assert mine_strides == said_strides, (func, args)
            compared.add(operator.name)
        return known

    monkeypatch.setattr(subject, "_simple", checked)
    monkeypatch.setattr(subject, "_layouts", {})
    config = tiny_config()
    assert config.template is not None
    template = replace(config.template, unit_vectors=True, initial_frames=True)
    for device_model in ("cpu", "h200"):
        with simulated_device(DEVICE_MODELS[device_model]), META, Counter():
            model = AlphaFold(replace(config, template=template)).train()
            batch = random_batch(9, 4, 5, 2, META)
            outputs = model(Whole(), [batch], None, torch.float32)
            loss: Tensor = total_loss(outputs, batch, random_labels(batch), initial_training()).total.sum()
            loss.backward()
    assert {"mul", "mm", "bmm", "cat", "native_layer_norm", "_log_softmax"} <= compared
    assert {"argmax", "flip", "linalg_cross", "prod"} <= compared  # of templates


def _permuted(random: np.random.Generator, shape: list[int]) -> Tensor:
    """An empty tensor of this shape whose dims lie in memory in any order; it may be a part of another, or expanded."""
    order = random.permutation(len(shape)).tolist()
    given = [each + int(random.integers(2)) for each in shape]
    dense = torch.empty([given[dim] for dim in order]).permute([order.index(dim) for dim in range(len(shape))])
    if random.random() < 0.2:
        return dense[tuple(slice(0, 1) for _ in shape)].expand(shape)
    return dense[tuple(slice(0, each) for each in shape)]


@pytest.mark.parametrize("seed", range(100))
def test_strides_of_results_are_those_of_pytorch(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = random.integers(2, 5, random.integers(1, 5)).tolist()
    operands = [_permuted(random, shape) for _ in range(random.integers(2, 4))]
    found = torch.add(*operands) if len(operands) == 2 else torch.addcmul(*operands)
    assert subject._pointwise_strides(shape, [each.stride() for each in operands]) == found.stride()
    index = _permuted(random, random.integers(2, 4, random.integers(1, 4)).tolist()).zero_().long()
    looked_up = operands[0][index]
    assert subject._looked_up(operands[0], [index]) == (tuple(looked_up.shape), looked_up.stride(), torch.float32)
