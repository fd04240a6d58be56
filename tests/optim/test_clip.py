"""Norms are exact enough to clip by, and what is not finite is never lost."""

import pytest
import torch

from helixfold.ops.constants import LINE
from helixfold.optim import clip
from helixfold.optim.clip import add_scaled, factor, norm, tensor_norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_are_those_of_each_tensor(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip, "_CHUNK", 8 * LINE)
    lines = torch.tensor([1, 30, 2, 0, 7])
    flat = torch.randn(40 * LINE).to(dtype)
    expected = torch.stack([part.double().norm() for part in flat.split((lines * LINE).tolist())])
    torch.testing.assert_close(tensor_norms(flat, lines), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lines", [1, 31, 32, 65, 300])
def test_the_norm_of_all_is_that_of_float64(lines: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip, "_CHUNK", 64 * LINE)
    flat = torch.randn(lines * LINE).to(dtype)
    torch.testing.assert_close(norm(flat), flat.double().norm(), rtol=1e-6, atol=0)


def test_norms_of_a_large_buffer_are_not_lost_in_rounding() -> None:
    # Summed one after another in float32, as many equal numbers are off by thousandths.
    flat = torch.full((2**24,), 1e-3)
    assert float(norm(flat)) == pytest.approx(1e-3 * 2**12, rel=1e-6)
    assert float(tensor_norms(flat, torch.tensor([2**24 // LINE]))[0]) == pytest.approx(1e-3 * 2**12, rel=1e-6)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_a_number_that_is_not_finite_or_has_no_square_shows_in_the_norm_and_the_factor(wrong: float) -> None:
    flat = torch.ones(10 * LINE)
    flat[100] = wrong
    norms = tensor_norms(flat, torch.tensor([2, 8]))
    assert norms.isfinite().tolist() == [True, False]
    assert not norm(flat).isfinite()
    assert factor(norms, 0.1).isnan().tolist() == [False, True]


def test_a_norm_is_brought_down_to_its_limit_and_never_up() -> None:
    norms = torch.tensor([0.0, 0.05, 0.1, 0.4], dtype=torch.float64)
    assert factor(norms, 0.1).tolist() == pytest.approx([1, 1, 1, 0.25])
    assert factor(norms, torch.tensor([0.0, 0.01, 0.2, torch.inf])).tolist() == pytest.approx([1, 0.2, 1, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_part_is_added_in_float32_and_cleared(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip, "_CHUNK", 8 * LINE)
    total, gradient = torch.randn(21 * LINE), torch.randn(21 * LINE).to(dtype)
    scale = torch.tensor(1 / 3)
    expected = total + gradient.float() * scale
    add_scaled(total, gradient, scale)
    torch.testing.assert_close(total, expected, rtol=1e-6, atol=1e-7)
    assert (gradient == 0).all()
