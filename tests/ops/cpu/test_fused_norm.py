"""Tests of the gradients of linear maps, which are summed over blocks of positions."""

import pytest
import torch
from torch.testing import assert_close

from helixfold.ops.cpu import fused_norm
from helixfold.ops.cpu.fused_norm import MapGradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels_first", [False, True])
def test_all_positions_of_all_blocks_count(
    dtype: torch.dtype, *, channels_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A block's positions are summed in several parts, of which the last is smaller.
    monkeypatch.setattr(fused_norm, "_SUMMED_ELEMENTS", 64)
    gradients, values = torch.randn(2, 30, 9).to(dtype), torch.randn(2, 30, 5).to(dtype)
    found = MapGradient(needs_weight=True, needs_bias=True)
    for gradient, value in zip(gradients, values, strict=True):
        found.add(gradient.mT.contiguous() if channels_first else gradient.mT, value)
    assert found.weight is not None
    assert found.bias is not None
    assert found.weight.dtype == found.bias.dtype == torch.float32
    exact = torch.einsum("bmo,bmi->oi", gradients.double(), values.double())
    assert_close(found.weight.double(), exact, rtol=0, atol=1e-4 if dtype == torch.float32 else 0.1)
    # Sums are float32 whatever the dtype of their terms is.
    assert_close(found.bias.double(), gradients.double().sum((0, 1)), rtol=1e-5, atol=1e-5)


def test_what_does_not_learn_is_not_computed() -> None:
    found = MapGradient(needs_weight=False, needs_bias=True)
    found.add(torch.randn(9, 30), torch.randn(30, 5))
    assert found.weight is None
    assert found.bias is not None
