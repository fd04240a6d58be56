"""The kernels of a norm and a narrow map give what the reference gives; without a GPU they are interpreted."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.dispatch import forced
from helixfold.ops.linear import norm_linear
from helixfold.ops.outer_product import outer_product_operand, outer_product_operands
from helixfold.ops.weights import Affine
from tests.ops.comparing import affine, assert_as_near, assert_equal, mask, norm

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def by_triton(x: Tensor, scale: Affine, project: Affine) -> Tensor:
    scale, project = (Affine(*(None if e is None else e.to(DEVICE) for e in each)) for each in (scale, project))
    with forced("triton") as used:
        found = norm_linear(x.to(DEVICE), scale, project)
    assert used["norm_linear"] == 1
    return found


def arguments(*batch: int, c_in: int, c_out: int, bias: bool = True, turned: bool = False) -> list[Any]:
    """Off centre; turned streams have their rows and columns swapped in memory."""
    x = 2 * torch.randn(*batch, c_in) + 1
    x = x.transpose(1, 2).contiguous().transpose(1, 2) if turned else x
    return [x.requires_grad_(), norm(c_in), affine(c_out, c_in, bias=bias)]


@pytest.mark.parametrize("c_out", [4, 13, 32, 64])
def test_outputs_and_gradients_equal_the_reference(c_out: int) -> None:
    given = arguments(2, 7, 65, c_in=64, c_out=c_out, bias=c_out != 4, turned=c_out % 8 == 0)
    assert_equal(by_triton, norm_linear.reference, given)


@pytest.mark.parametrize("batch", [(), (1,), (63, 7), (1, 5, 256)])
def test_any_batch_is_taken(batch: tuple[int, ...]) -> None:
    assert_equal(by_triton, norm_linear.reference, arguments(*batch, c_in=128, c_out=8))


def test_wide_streams_equal_the_reference() -> None:
    assert_equal(by_triton, norm_linear.reference, arguments(1, 9, 33, c_in=256, c_out=32, turned=True))


@pytest.mark.parametrize("c_out", [4, 32])
def test_bfloat16_is_as_near_as_plain_bfloat16(c_out: int) -> None:
    given = arguments(1, 33, 9, c_in=128, c_out=c_out, turned=True)
    assert_as_near(by_triton, norm_linear.reference, given)


def test_few_channels_lead_in_memory() -> None:
    found = by_triton(*arguments(2, 5, 6, c_in=64, c_out=4, bias=False))
    assert found.permute(0, 3, 1, 2).is_contiguous(), "heads' biases would be copied"


def test_operands_of_the_outer_product_equal_the_reference() -> None:
    columns, *maps = arguments(2, 5, 19, c_in=64, c_out=32, turned=True)

    def run(*given: Any) -> Tensor:
        with forced("triton") as used:
            found = outer_product_operand(*given)
        assert used["outer_product_operand"] == 1
        assert found.transpose(2, 3).is_contiguous(), "sequences are not last in memory"
        return found

    given = [columns, mask(2, 5, 19), *maps]
    if DEVICE == "cpu":
        assert_equal(run, outer_product_operand.reference, given)
        assert_as_near(run, outer_product_operand.reference, given)


@pytest.mark.parametrize(("c_out", "bias"), [(32, True), (13, False)])
def test_both_operands_of_the_outer_product_equal_the_reference(c_out: int, bias: bool) -> None:
    columns, *maps = arguments(2, 5, 19, c_in=64, c_out=c_out, bias=bias, turned=bias)

    def run(*given: Any) -> tuple[Tensor, Tensor]:
        with forced("triton") as used:
            left, right = outer_product_operands(*given)
        assert used["outer_product_operands"] == 1
        assert left.transpose(2, 3).is_contiguous(), "sequences are not last in memory"
        assert right.permute(0, 2, 3, 1).is_contiguous(), "sequences are not last in memory"
        return left, right

    given = [columns, mask(2, 5, 19), *maps, affine(c_out, 64, bias=bias)]
    if DEVICE == "cpu":
        assert_equal(run, outer_product_operands.reference, given)
        assert_as_near(run, outer_product_operands.reference, given)


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
