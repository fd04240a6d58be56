"""Layer norm and a narrow map in blocks equal their plain meaning."""

import pytest
import torch

from helixfold.ops.cpu.linear import norm_linear_rows
from helixfold.ops.linear import norm_linear
from tests.ops.comparing import affine, assert_as_near, assert_equal, norm

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.mark.parametrize("shape", [(8,), (99, 256)])
def test_batches_of_few_dims_equal_the_reference(shape: tuple[int, ...]) -> None:
    arguments = (2 * torch.randn(shape) + 1).requires_grad_(), norm(shape[-1]), affine(32, shape[-1])
    assert_equal(norm_linear_rows, norm_linear.reference, arguments)


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
