"""The outer product kernels give what the reference gives; without a GPU they run in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.outer_product import outer_product_mean
from helixfold.ops.weights import Affine
from tests.ops.comparing import FLOOR, affine, assert_as_near, assert_equal, by_triton, mask

pytest.importorskip("triton")
BY_TRITON = by_triton(outer_product_mean)


def inputs(*sizes: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Affine]:
    """Halves and masks as the model makes them, of columns of an MSA, the right ones with sequences first."""
    b, i, j, s, c, d, c_z = sizes
    left_mask, right_mask = mask(b, i, s), mask(b, j, s)
    left = torch.randn(b, s, i, c).transpose(1, 2) * left_mask[..., None]
    right = torch.randn(b, j, s, d) * right_mask[..., None]
    halves = left.requires_grad_(), right.transpose(1, 2).requires_grad_()
    return *halves, left_mask, right_mask.transpose(1, 2), affine(c_z, c * d)


@pytest.mark.parametrize(
    "sizes",
    [(2, 17, 9, 7, 8, 16, 32), pytest.param((1, 3, 5, 65, 32, 32, 128), marks=pytest.mark.long)],
)
def test_operands_may_differ_in_columns_and_channels(sizes: tuple[int, ...]) -> None:
    given = inputs(*sizes)
    assert_equal(BY_TRITON, outer_product_mean.reference, given)
    assert_as_near(BY_TRITON, outer_product_mean.reference, given, FLOOR)


def test_the_sums_of_several_blocks_of_sequences_and_edges_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helixfold.ops.triton.outer_product_backward._PROGRAMS", 3)
    given = inputs(1, 18, 9, 256, 8, 8, 32)
    assert_equal(BY_TRITON, outer_product_mean.reference, given)
    assert_as_near(BY_TRITON, outer_product_mean.reference, given, FLOOR)


def test_frozen_parameters_get_no_gradients_and_change_none() -> None:
    *halves, out = inputs(1, 4, 5, 6, 16, 16, 32)
    assert_equal(BY_TRITON, outer_product_mean.reference, (*halves, Affine(*(each.detach() for each in out))))
    halves[0] = halves[0].detach()
    assert_equal(BY_TRITON, outer_product_mean.reference, (*halves, out))


def test_it_refuses_what_its_tiles_cannot_hold() -> None:
    def unsupported_reason(s: int, c: int, c_z: int, dtype: torch.dtype = torch.bfloat16) -> str | None:
        left, right = torch.empty(1, 3, s, c, dtype=dtype), torch.empty(1, s, 4, c, dtype=dtype)
        given = left, right, left[..., 0], right[..., 0], affine(c_z, c * c)
        return outer_product_mean.unsupported_reasons(DEVICE_MODELS["h100"], *given)["triton"]

    assert unsupported_reason(5, 32, 128) is None
    assert unsupported_reason(5, 32, 128, torch.float32) == "products in float32 are left to cuBLAS"
    assert unsupported_reason(0, 32, 128) is not None
    assert unsupported_reason(5, 24, 128) is not None
    assert unsupported_reason(5, 32, 96) is not None
    assert unsupported_reason(5, 32, 128, torch.float64) is not None
