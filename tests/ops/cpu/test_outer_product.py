"""The outer product mean in tiles equals its reference, outputs and gradients."""

import pytest
import torch
from torch import Tensor

from helixfold.ops.cpu import outer_product as subject
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.dispatch import forced
from helixfold.ops.outer_product import outer_product_mean
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import intermediates
from helixfold.ops.weights import Affine
from tests.ops.comparing import affine, assert_as_near, assert_equal, mask
from tests.support.live import Live

Arguments = tuple[Tensor, Tensor, Tensor, Tensor, Affine]


def arguments(
    i: int,
    j: int,
    s: int,
    *,
    c: int = 8,
    d: int = 8,
    c_z: int = 5,
    b: int = 1,
    turned: bool = True,
    bias: bool = True,
) -> Arguments:
    """As the model makes them: zero where masks are, and the right half a view of (b j s d) unless slabs joined it."""
    left_mask, right_mask = mask(b, i, s), mask(b, s, j)
    left = torch.randn(b, i, s, c) * left_mask[..., None]
    right = torch.randn(b, s, j, d) * right_mask[..., None]
    if turned:
        right = right.transpose(1, 2).contiguous().transpose(1, 2)
    return left.requires_grad_(), right.requires_grad_(), left_mask, right_mask, affine(c_z, c * d, bias=bias)


@pytest.mark.parametrize(
    ("i", "j", "s", "options"),
    [
        (65, 63, 7, {"c": 3, "d": 4}),
        (3, 256, 63, {"turned": False}),
        (65, 33, 1, {"bias": False}),
    ],
)
def test_operands_may_differ_in_columns_and_channels(i: int, j: int, s: int, options: dict[str, int]) -> None:
    with forced("rows") as used:
        assert_equal(outer_product_mean, outer_product_mean.reference, arguments(i, j, s, **options))
    assert used["outer_product_mean"] == 1


def test_sums_over_many_tiles_are_not_taken_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_TILE_ROWS", 1)
    monkeypatch.setattr(subject, "_TILE_ELEMENTS", 2**12)
    monkeypatch.setattr(subject, "_SEQUENCES", 32)
    with forced("rows") as used:
        assert_as_near(outer_product_mean, outer_product_mean.reference, arguments(7, 63, 65, c=32, d=32, c_z=16))
    assert used["outer_product_mean"] == 1


@pytest.mark.parametrize("frozen", ["left and right", "map"])
def test_gradients_are_given_to_those_that_need_them(frozen: str) -> None:
    left, right, left_mask, right_mask, out = arguments(9, 11, 5)
    if frozen == "map":
        out = Affine(*(each.detach() for each in out))
    else:
        left, right = left.detach(), right.detach()
    with forced("rows"):
        assert_equal(outer_product_mean, outer_product_mean.reference, (left, right, left_mask, right_mask, out))


def test_a_pass_keeps_nothing_of_the_size_of_the_products() -> None:
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: sizes.append(each.numel()) or each, lambda each: each):
        outer_product_mean(*arguments(20, 20, 3))
    assert max(sizes) <= 20 * 20 * 5


@pytest.mark.parametrize(("dtype", "halves"), [(torch.float32, 6), (torch.bfloat16, 8)])
def test_gradients_take_no_more_than_themselves_and_one_sum(dtype: torch.dtype, halves: int) -> None:
    left, right, left_mask, right_mask, out = arguments(80, 80, 512, c=32, d=32)
    left, right = (each.detach().to(dtype).requires_grad_() for each in (left, right))
    with intermediates("recomputed"):
        mean = outer_product_mean(left, right, left_mask, right_mask, out)
    with Live() as live:
        torch.autograd.grad(mean, (left, right), torch.ones_like(mean))
    # Two in float32, and four in bfloat16, are the gradients and the right half's sum; the rest is for tiles, and would
    # be a smaller part of what more sequences need. Tiles that are multiplied in float32 are twice as large.
    tiles_in_float32 = product_dtype(dtype) != dtype
    assert live.peak <= (halves + 4 * tiles_in_float32) * left.nbytes


def test_what_it_cannot_take_is_left_to_the_reference() -> None:
    given = arguments(3, 4, 2)
    wide = [each.double() for each in given[:2]]
    reasons = outer_product_mean.unsupported_reasons(DEVICE_MODELS["cpu"], *wide, *given[2:])
    assert reasons["rows"] == "float64 is left to the reference"
    empty = arguments(3, 4, 0)
    assert outer_product_mean.unsupported_reasons(DEVICE_MODELS["cpu"], *empty)["rows"] == "there is nothing to compute"
    assert outer_product_mean(*empty).shape == (1, 3, 4, 5)
