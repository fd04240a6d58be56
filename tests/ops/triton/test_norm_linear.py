"""The kernels of a norm and a narrow map give what the reference gives; without a GPU they are interpreted."""

from typing import Any

import pytest
import torch

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.linear import norm_linear
from helixfold.ops.outer_product import outer_product_operand, outer_product_operands
from tests.ops.comparing import affine, assert_as_near, assert_equal, by_triton, mask, norm

pytest.importorskip("triton")
BY_TRITON = by_triton(norm_linear)


def arguments(*batch: int, c_in: int, c_out: int, bias: bool = True, turned: bool = False) -> list[Any]:
    """Off centre; turned streams have their rows and columns swapped in memory."""
    x = 2 * torch.randn(*batch, c_in) + 1
    x = x.transpose(1, 2).contiguous().transpose(1, 2) if turned else x
    return [x.requires_grad_(), norm(c_in), affine(c_out, c_in, bias=bias)]


@pytest.mark.parametrize("c_out", [13, 32, 64])
def test_other_maps_equal_the_reference(c_out: int) -> None:
    given = arguments(2, 7, 35, c_in=64, c_out=c_out, turned=c_out % 8 == 0)
    assert_as_near(BY_TRITON, norm_linear.reference, given)
    assert_equal(BY_TRITON, norm_linear.reference, given)


@pytest.mark.parametrize("batch", [(), (63, 7)])
def test_any_batch_is_taken(batch: tuple[int, ...]) -> None:
    assert_equal(BY_TRITON, norm_linear.reference, arguments(*batch, c_in=128, c_out=8))


def test_wide_streams_equal_the_reference() -> None:
    assert_equal(BY_TRITON, norm_linear.reference, arguments(1, 9, 33, c_in=256, c_out=32, turned=True))


def test_few_channels_lead_in_memory() -> None:
    found = BY_TRITON(*arguments(2, 5, 6, c_in=64, c_out=4, bias=False))
    assert found.permute(0, 3, 1, 2).is_contiguous(), "heads' biases would be copied"


@torch.no_grad()
def test_sequences_of_operands_of_the_outer_product_are_last_in_memory() -> None:
    columns, scale, left = arguments(2, 5, 19, c_in=64, c_out=13, bias=False, turned=True)
    present, right = mask(2, 5, 19), affine(13, 64, bias=False)
    assert by_triton(outer_product_operand)(columns, present, scale, left).transpose(2, 3).is_contiguous()
    found = by_triton(outer_product_operands)(columns, present, scale, left, right)
    assert found[0].transpose(2, 3).is_contiguous()
    assert found[1].permute(0, 2, 3, 1).is_contiguous()
    for ours, expected in zip(
        found, outer_product_operands.reference(columns, present, scale, left, right), strict=True
    ):
        torch.testing.assert_close(ours.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_operands_of_different_kinds_are_left_to_others() -> None:
    columns, scale, left = arguments(2, 5, 19, c_in=64, c_out=32)
    for right, reason in (
        (affine(16, 64), "differ in channels"),
        (affine(32, 64, bias=False), "one operand has a bias"),
    ):
        reasons = outer_product_operands.unsupported_reasons(
            DEVICE_MODELS["h100"], columns, mask(2, 5, 19), scale, left, right
        )
        assert reason in str(reasons["triton"])


def test_what_is_refused_has_a_reason() -> None:
    reasons = [
        norm_linear.unsupported_reasons(DEVICE_MODELS["h100"], *arguments(3, c_in=c_in, c_out=c_out))["triton"]
        for c_in, c_out in ((64, 4), (96, 4), (64, 65), (64, 32))
    ]
    assert reasons == [
        None,
        "96 channels are not 64, 128 or 256",
        "65 outputs are more than 64",
        "products in float32 with more than 16 outputs are left to cuBLAS",
    ]
