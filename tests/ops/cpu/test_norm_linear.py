"""Layer norm and a narrow map in blocks equal their plain meaning."""

import pytest
import torch

from helixfold.ops.cpu import fused_norm
from helixfold.ops.cpu.linear import norm_linear_rows
from helixfold.ops.linear import norm_linear
from tests.ops.comparing import affine, assert_as_near, assert_equal, norm


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are several, with remainders."""
    monkeypatch.setattr(fused_norm, "POSITIONS", 100)


@pytest.mark.parametrize(
    ("shape", "out", "turned"),
    [
        ((8,), 4, False),
        ((1, 1, 1, 8), 4, False),
        ((2, 7, 63, 16), 12, True),
        ((1, 65, 256, 8), 4, True),
        ((99, 256), 32, False),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_it_equals_the_reference(shape: tuple[int, ...], out: int, turned: bool, bias: bool) -> None:
    x = 2 * torch.randn(shape) + 1
    x = (x.transpose(1, 2) if turned else x).requires_grad_()
    arguments = x, norm(shape[-1]), affine(out, shape[-1], bias=bias)
    assert_equal(norm_linear_rows, norm_linear.reference, arguments)
    if x.numel() > 100:
        assert_as_near(norm_linear_rows, norm_linear.reference, arguments)


def test_a_large_mean_costs_no_digits() -> None:
    x = (10 + torch.randn(3, 41, 128)).requires_grad_()
    arguments = x, norm(128), affine(8, 128)
    assert_equal(norm_linear_rows, norm_linear.reference, arguments)
    assert_as_near(norm_linear_rows, norm_linear.reference, arguments)


def test_it_is_used_for_all_but_float64() -> None:
    x, *maps = torch.randn(2, 3, 8, requires_grad=True), norm(8), affine(4, 8)
    assert norm_linear.choice(x, *maps).name == "rows"
    assert norm_linear.choice(x.double(), *maps).name == "reference"
    assert norm_linear(x, *maps).grad_fn.saved_tensors[0] is x  # type: ignore[union-attr]


def test_there_may_be_no_positions() -> None:
    assert norm_linear_rows(torch.randn(2, 0, 3, 8), norm(8), affine(4, 8)).shape == (2, 0, 3, 4)
