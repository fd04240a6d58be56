"""Small networks are trained by plain PyTorch on a CPU, and predict by the operators' own backends."""

from typing import Any

import pytest
import torch

from helixfold.ops import sizes
from helixfold.ops.attention import attention
from helixfold.ops.device_properties import DEVICE_MODELS, simulated_device
from helixfold.ops.dispatch import forced
from helixfold.ops.outer_product import outer_product_mean
from helixfold.ops.transition import transition
from helixfold.ops.weights import Affine, TransitionWeights


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "SMALL_STREAM", 4 * 8)
    monkeypatch.setattr(sizes, "MAX_SAVED_ELEMENTS", 100)


def of_transition(elements: int) -> tuple[torch.Tensor, TransitionWeights]:
    expand, contract = Affine(torch.randn(32, 8), torch.randn(32)), Affine(torch.randn(8, 32), torch.randn(8))
    return torch.randn(elements // 8, 8), TransitionWeights(Affine(torch.ones(8), torch.zeros(8)), expand, contract)


def test_what_takes_gradients_and_is_small_is_left_to_plain_pytorch() -> None:
    x, weights = of_transition(4 * 8)
    assert transition.choice(x, weights).name == "rows"
    x.requires_grad_()
    assert transition.choice(x, weights).name == "reference"
    with torch.no_grad():
        assert transition.choice(x, weights).name == "rows"
    with forced("rows"):
        assert transition.choice(x, weights).name == "rows"
    larger, weights = of_transition(5 * 8)
    assert transition.choice(larger.requires_grad_(), weights).name == "rows"
    assert "is faster" in (transition.unsupported_reasons(DEVICE_MODELS["cpu"], x, weights)["rows"] or "")


def test_what_plain_pytorch_would_keep_counts() -> None:
    def of(keys: int) -> str:
        query = torch.randn(1, 1, 1, 10, 2, requires_grad=True)
        key = torch.randn(1, 1, 1, keys, 2)
        return attention.choice(query, key, key, mask=torch.ones(1, 1, keys)).name

    def of_columns(channels: int) -> str:
        left, right = torch.randn(1, 5, 1, channels, requires_grad=True), torch.randn(1, 1, 5, 2)
        mask, out = torch.ones(1, 5, 1), Affine(torch.randn(3, 2 * channels), torch.zeros(3))
        return outer_product_mean.choice(left, right, mask, mask.mT, out=out).name

    assert [of(10), of(11)] == ["reference", "rows"]
    assert [of_columns(2), of_columns(3)] == ["reference", "rows"]


def test_a_gpu_keeps_its_kernels() -> None:
    bfloat16: dict[str, Any] = {"device": "meta", "dtype": torch.bfloat16}
    square = Affine(torch.empty(64, 64, **bfloat16), torch.empty(64, **bfloat16))
    norm = Affine(torch.empty(64, device="meta"), torch.empty(64, device="meta"))
    x = torch.empty(1, 1, 32, 64, **bfloat16).requires_grad_()
    with simulated_device(DEVICE_MODELS["h100"]):
        assert transition.choice(x, TransitionWeights(norm, square, square)).name == "triton"
