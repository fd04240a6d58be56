"""Triton's triangle multiplication gives what the references give; without a GPU it runs in Triton's interpreter."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.triangle import triangle_multiplication, triangle_operand
from helixfold.ops.weights import TriangleOperandWeights, TriangleWeights
from tests.ops.comparing import affine, assert_equal, by_triton, mask, norm

pytest.importorskip("triton")


def pair(b: int, rows: int, columns: int, c_z: int, *, turned: bool = False) -> Tensor:
    """Off centre; turned ones have their rows and columns swapped in memory."""
    x = 2 * torch.randn(b, rows, columns, c_z) + 1
    return (x.transpose(1, 2).contiguous().transpose(1, 2) if turned else x).requires_grad_()


def for_operand(b: int, j: int, k: int, c_z: int, c: int, *, turned: bool = False) -> list[Any]:
    weights = TriangleOperandWeights(norm(c_z), affine(c, c_z), affine(c, c_z))
    return [pair(b, j, k, c_z, turned=turned), mask(b, j, k), weights]


def for_multiplication(b: int, i: int, k: int, c_z: int, c: int, *, turned: bool = False) -> list[Any]:
    right = torch.randn(b, c, k, k).requires_grad_()
    left = [norm(c_z), affine(c, c_z), affine(c, c_z)]
    given = pair(b, i, k, c_z, turned=turned)
    weights = TriangleWeights(*left, norm(c), affine(c_z, c), affine(c_z, c_z))
    return [given, mask(b, i, k), right, weights]


def test_long_rows_equal_the_reference() -> None:
    given = for_multiplication(1, 2, 256, 16, 16)
    assert_equal(by_triton(triangle_multiplication), triangle_multiplication.reference, given)


def test_channels_of_the_model_equal_the_reference() -> None:
    given = for_multiplication(1, 1, 40, 128, 128)
    assert_equal(by_triton(triangle_multiplication), triangle_multiplication.reference, given)


def test_rows_without_mask_are_zero_and_all_masked_is_finite() -> None:
    given = for_operand(1, 3, 20, 16, 16)
    given[1] = torch.zeros(1, 3, 20)
    found = by_triton(triangle_operand)(*given)
    assert (found == 0).all()
    found.sum().backward()
    assert (given[0].grad == 0).all()


def test_slabs_of_a_turned_stream_are_read_where_they_are() -> None:
    stream = torch.randn(1, 20, 20, 16)
    slab = stream.transpose(1, 2)[:, 3:8]
    given = for_multiplication(1, 5, 20, 16, 16)
    with torch.no_grad():
        found = by_triton(triangle_multiplication)(slab, *given[1:])
        expected = triangle_multiplication.reference(slab, *given[1:])
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert found.stride(1) < found.stride(2), "the change does not lie as the stream does"


def test_gradients_that_lie_in_any_way_are_taken() -> None:
    given = for_multiplication(1, 4, 18, 16, 16)
    found, expected = (
        torch.autograd.grad(op(*given).sum(), [given[0], given[2]])
        for op in (by_triton(triangle_multiplication), triangle_multiplication.reference)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_what_is_refused_has_a_reason() -> None:
    pair, *given = for_multiplication(1, 4, 18, 16, 16)
    given = [pair.bfloat16(), *given]
    wide, *others = for_operand(1, 4, 18, 24, 16)
    wide = [wide.bfloat16(), *others]
    assert triangle_multiplication.unsupported_reasons(DEVICE_MODELS["h100"], *given)["triton"] is None
    assert (
        triangle_operand.unsupported_reasons(DEVICE_MODELS["h100"], *wide)["triton"]
        == "24 channels are not 16, 32, 64 or 128"
    )
    double = [given[0].double(), *given[1:]]
    assert (
        triangle_multiplication.unsupported_reasons(DEVICE_MODELS["h100"], *double)["triton"]
        == "torch.float64 is left to the reference"
    )
