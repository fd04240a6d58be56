"""A layer norm whose gradients are as good as its dtype, over however many elements they are summed."""

import pytest
import torch
from torch import Tensor

from helixfold.ops.cpu import layer_norm as subject
from helixfold.ops.linear import layer_norm
from helixfold.ops.weights import Affine


def inputs(*shape: int, turned: bool = False) -> list[Tensor]:
    """Activations off centre, scale, offset, and a gradient with a mean, as a bias's is."""
    x = 3 * torch.randn(*shape) + 2
    gradient = torch.randn(*shape) + 0.5
    if turned:
        x, gradient = x.transpose(0, 1), gradient.transpose(0, 1)
    return [x, torch.randn(shape[-1]), torch.randn(shape[-1]), gradient]


def results(function: object, given: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The output and the three gradients; parameters stay in float32 or wider, as in training."""
    x, weight, bias, gradient = given
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    leaves = [each.to(kind, copy=True).requires_grad_() for each, kind in ((x, dtype), (weight, wide), (bias, wide))]
    output = function(leaves[0], Affine(*leaves[1:]))
    assert output.dtype == dtype
    output.backward(gradient.to(dtype))
    return [output.detach(), *(leaf.grad for leaf in leaves)]


def errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]


@pytest.mark.parametrize("shape", [(1, 3, 8), (70, 65, 24), (4097, 16), (5,)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_in_low_precision_are_as_near_as_their_rounding(
    shape: tuple[int, ...], turned: bool, dtype: torch.dtype
) -> None:
    given = inputs(*shape, turned=turned and len(shape) == 3)
    found = errors(results(layer_norm, given, dtype), results(layer_norm.reference, given, torch.float64))
    assert max(found) < 0.01


def test_pytorchs_own_sums_lose_most_of_an_offsets_gradient() -> None:
    """If this fails, PyTorch has been mended and our own sums can go."""
    given = inputs(70, 65, 24)
    plain, exact = (results(layer_norm.reference, given, dtype) for dtype in (torch.bfloat16, torch.float64))
    assert errors(plain, exact)[-1] > 0.2


def test_chunks_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(9, 7, 8)
    whole = results(layer_norm, given, torch.bfloat16)
    for elements in (1, 40, 8 * 63):
        monkeypatch.setattr(subject, "CHUNK_ELEMENTS", elements)
        for ours, expected in zip(results(layer_norm, given, torch.bfloat16), whole, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def by_its_formula(x: Tensor, norm: Affine) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_in_full_precision_output_and_gradients_are_those_of_the_formula(dtype: torch.dtype, error: float) -> None:
    given = inputs(6, 5, 8)
    exact = results(by_its_formula, given, torch.float64)
    assert max(errors(results(layer_norm, given, dtype), exact)) < error


def test_with_and_without_gradient_the_output_is_one() -> None:
    x, weight, bias, _ = inputs(50, 40, 32)
    with torch.no_grad():
        expected = layer_norm(x.bfloat16(), Affine(weight, bias))
    assert torch.equal(layer_norm(x.bfloat16().requires_grad_(), Affine(weight, bias)), expected)
