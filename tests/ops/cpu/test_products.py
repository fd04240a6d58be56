"""Products by either library are products, whatever the strides of their operands are."""

import pytest
import torch
from torch import Tensor

from helixfold.ops.cpu import products
from helixfold.ops.cpu.products import add_product, batched_product, mapped, product
from helixfold.ops.linear import LINEAR, Affine, linear
from tests.networks import relative_error


@pytest.fixture(autouse=True, params=[0, 2**60], ids=["onednn", "usual"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All products by one library, however small they are."""
    if request.param == 0 and not products._HAS_ONEDNN:
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(products, "_LEAST", request.param)
    monkeypatch.setattr(products, "_LEAST_OF_A_BATCH", request.param)


def matrices(rows: int, columns: int) -> list[Tensor]:
    """The same numbers in several places of memory."""
    plain = torch.randn(rows, columns)
    wider = torch.full((2 * rows, columns + 3), torch.nan)
    wider[::2, 1:-2] = plain
    return [plain, plain.T.contiguous().T, wider[::2, 1:-2], wider.T.contiguous().T[::2, 1:-2]]


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (7, 65, 63), (64, 16, 5), (5, 3, 64)])
def test_any_strides_are_taken(m: int, k: int, n: int) -> None:
    bias = torch.randn(n)
    for left in matrices(m, k):
        for right in matrices(k, n):
            expected = left.double() @ right.double()
            assert relative_error(product(left, right), expected) < 1e-6
            assert relative_error(mapped(left, right.T, bias), expected + bias) < 1e-6
            total = torch.ones(m, n)
            add_product(total, left, right)
            assert relative_error(total, expected + 1) < 1e-6


def test_narrow_products_are_added_in_float32() -> None:
    left, right, total = torch.randn(9, 33).bfloat16(), torch.randn(33, 8).bfloat16(), torch.zeros(9, 8)
    add_product(total, left, right)
    assert relative_error(total, left.double() @ right.double()) < 2**-8
    assert mapped(left, right.T).dtype == torch.bfloat16


@pytest.mark.parametrize("add", [False, True])
def test_batches_are_written_or_added(add: bool) -> None:
    left, right = torch.randn(3, 7, 5), torch.randn(3, 9, 5).mT
    out = torch.ones(3, 7, 9) if add else torch.full((3, 7, 9), torch.nan)
    batched_product(left, right, out, add=add)
    assert relative_error(out, left.double() @ right.double() + int(add)) < 1e-6


def test_a_linear_map_without_gradients_is_one_of_them() -> None:
    x, parameters = torch.randn(2, 3, 7), Affine(torch.randn(5, 7), torch.randn(5))
    expected = torch.nn.functional.linear(x.double(), *parameters.to(torch.float64))
    assert relative_error(linear(x, parameters), expected) < 1e-6
    assert linear(x[:, :0], parameters).shape == (2, 0, 5)
    assert LINEAR.choice(x, parameters).name == "onednn"
    assert LINEAR.choice(x.requires_grad_(), parameters).name == "reference"
