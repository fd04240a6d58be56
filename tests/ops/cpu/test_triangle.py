"""Triangle multiplication in blocks of rows equals its plain meaning."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.ops.cpu import fused_norm
from helixfold.ops.cpu import triangle as module
from helixfold.ops.cpu.triangle import triangle_multiplication_rows, triangle_operand_rows
from helixfold.ops.triangle import triangle_multiplication, triangle_operand
from helixfold.ops.weights import TriangleOperandWeights, TriangleWeights
from tests.ops.comparing import affine, assert_as_near, assert_equal, mask, norm

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


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are several, with remainders."""
    monkeypatch.setattr(module, "_BYTES", 1)
    monkeypatch.setattr(module, "_MIN_ROWS", 32)
    monkeypatch.setattr(module, "_PRODUCT_BYTES", 2**14)
    monkeypatch.setattr(fused_norm, "POSITIONS", 300)


@pytest.mark.parametrize(
    ("shape", "turned"),
    [
        ((1, 1, 1, 8, 4), False),
        ((1, 7, 7, 8, 12), False),
        ((2, 63, 63, 8, 5), True),
        ((1, 65, 65, 12, 16), False),
        ((2, 3, 65, 16, 8), True),
        ((1, 33, 33, 128, 128), True),
    ],
)
def test_they_equal_their_references(shape: Shape, turned: bool) -> None:
    assert_equal(triangle_operand_rows, triangle_operand.reference, of_operand(shape, turned=turned))
    arguments = of_multiplication(shape, turned=turned)
    assert_equal(triangle_multiplication_rows, triangle_multiplication.reference, arguments)


@pytest.mark.parametrize(
    ("shape", "turned"),
    [((2, 65, 65, 32, 48), False), ((1, 7, 63, 64, 32), True), ((1, 33, 33, 128, 128), True)],
)
def test_they_are_as_near_as_the_references_in_bfloat16(shape: Shape, turned: bool) -> None:
    assert_as_near(triangle_operand_rows, triangle_operand.reference, of_operand(shape, turned=turned))
    arguments = of_multiplication(shape, turned=turned)
    assert_as_near(triangle_multiplication_rows, triangle_multiplication.reference, arguments)


def test_they_equal_their_references_at_the_usual_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert_equal(triangle_operand_rows, triangle_operand.reference, of_operand((1, 40, 256, 16, 16)))
    monkeypatch.setattr(module, "_BYTES", 1)
    arguments = of_multiplication((1, 256, 256, 16, 16))
    assert_equal(triangle_multiplication_rows, triangle_multiplication.reference, arguments)


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
