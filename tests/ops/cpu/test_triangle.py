"""Triangle multiplication in blocks of rows equals its plain meaning."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.ops.cpu.triangle import triangle_multiplication_rows, triangle_operand_rows
from helixfold.ops.triangle import triangle_multiplication, triangle_operand
from helixfold.ops.weights import TriangleOperandWeights, TriangleWeights
from tests.ops.comparing import affine, assert_as_near, assert_equal, mask, norm

pytestmark = pytest.mark.usefixtures("small_blocks")
# Samples, rows, columns, channels of the stream and of the operands.
Shape = tuple[int, int, int, int, int]


def stream(b: int, rows: int, columns: int, c: int, *, turned: bool = False) -> Tensor:
    """A slab of a pair stream, of whole width."""
    if turned:
        return (1 + 2 * torch.randn(b, columns, rows + 2, c)).transpose(1, 2)[:, 1:-1].requires_grad_()
    return (1 + 2 * torch.randn(b, rows, columns, c)).requires_grad_()


def of_operand(shape: Shape, *, turned: bool = False) -> tuple[Any, ...]:
    b, rows, columns, c_z, c = shape
    pair = stream(b, rows, columns, c_z, turned=turned)
    return pair, mask(b, rows, columns), TriangleOperandWeights(norm(c_z), affine(c, c_z), affine(c, c_z))


def of_multiplication(shape: Shape, *, turned: bool = False) -> tuple[Any, ...]:
    b, rows, columns, c_z, c = shape
    right = torch.randn(b, c, columns, columns).requires_grad_()
    maps = affine(c, c_z), affine(c, c_z), norm(c), affine(c_z, c), affine(c_z, c_z)
    pair = stream(b, rows, columns, c_z, turned=turned)
    return pair, mask(b, rows, columns), right, TriangleWeights(norm(c_z), *maps)


def test_slabs_of_rows_equal_the_reference() -> None:
    shape = (2, 3, 65, 16, 8)
    assert_equal(triangle_operand_rows, triangle_operand.reference, of_operand(shape, turned=True))
    arguments = of_multiplication(shape, turned=True)
    assert_equal(triangle_multiplication_rows, triangle_multiplication.reference, arguments)
    assert_as_near(triangle_multiplication_rows, triangle_multiplication.reference, arguments)


def test_a_large_mean_costs_no_digits() -> None:
    pair, *rest = of_multiplication((1, 17, 17, 16, 16))
    pair = (pair.detach() / 2 + 10).requires_grad_()
    rest[1] = (rest[1].detach() + 10).requires_grad_()
    assert_equal(triangle_multiplication_rows, triangle_multiplication.reference, (pair, *rest))
    assert_as_near(triangle_multiplication_rows, triangle_multiplication.reference, (pair, *rest))


def test_small_values_are_normalised_as_little() -> None:
    pair, mask, right, *maps = of_multiplication((1, 17, 17, 16, 16))
    pair, right = (((each.detach() - 1) / 300).requires_grad_() for each in (pair, right))
    assert_equal(triangle_multiplication_rows, triangle_multiplication.reference, (pair, mask, right, *maps))


def test_a_change_lies_in_memory_as_its_stream() -> None:
    pair, *rest = of_multiplication((1, 9, 9, 8, 4))
    pair = pair.detach().transpose(1, 2)
    change = triangle_multiplication_rows(pair, *rest)
    assert change.stride() == pair.stride()
    assert torch.autograd.grad(change.sum(), rest[1])[0].shape == rest[1].shape


def test_gradients_may_lie_in_memory_as_they_like() -> None:
    def turned(*given: Any) -> Tensor:
        return triangle_operand_rows(*given).permute(3, 1, 0, 2).contiguous()

    def plain(*given: Any) -> Tensor:
        return triangle_operand.reference(*given).permute(3, 1, 0, 2).contiguous()

    assert_equal(turned, plain, of_operand((2, 33, 20, 8, 4)))


@pytest.mark.parametrize(
    ("run", "given"), [(triangle_operand_rows, of_operand), (triangle_multiplication_rows, of_multiplication)]
)
def test_gradients_may_be_parts_of_larger_tensors(run: Any, given: Any) -> None:
    arguments = given((1, 9, 9, 8, 4))
    result = run(*arguments)
    part = torch.randn(*result.shape[:-1], result.shape[-1] + 3)[..., :-3]
    leaves = [each for each in arguments[:-1] if each.requires_grad]
    found = torch.autograd.grad(result, leaves, part)
    for ours, right in zip(found, torch.autograd.grad(run(*arguments), leaves, part.contiguous()), strict=True):
        assert ours.abs().max() > 0
        assert torch.equal(ours, right)


def test_they_are_used_for_all_but_float64() -> None:
    for op, arguments in (
        (triangle_operand, of_operand((1, 3, 5, 8, 4))),
        (triangle_multiplication, of_multiplication((1, 3, 5, 8, 4))),
    ):
        pair, mask, *rest = arguments
        assert op.choice(pair, mask, *rest).name == "rows"
        assert op.choice(pair.double(), mask, *rest).name == "reference"
        result = op(pair, mask, *rest)
        assert [each.shape for each in result.grad_fn.saved_tensors[:2]] == [pair.shape, mask.shape]


def test_there_may_be_no_rows() -> None:
    pair, mask, *rest = of_multiplication((1, 3, 5, 8, 4))
    assert triangle_multiplication_rows(pair[:, :0], mask[:, :0], *rest).shape == (1, 0, 5, 8)
    pair, mask, *rest = of_operand((1, 3, 5, 8, 4))
    assert triangle_operand_rows(pair[:, :0], mask[:, :0], *rest).shape == (1, 4, 0, 5)
