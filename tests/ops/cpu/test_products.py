"""Products by either library are products, whatever the strides of their operands are."""

import pytest
import torch
from torch import Tensor

from helixfold.ops import precision
from helixfold.ops.cpu import products
from helixfold.ops.cpu.linear import linear_in_float32
from helixfold.ops.cpu.products import add_product, batched_product, mapped, product
from helixfold.ops.linear import linear, multiply
from helixfold.ops.weights import Affine
from tests.ops.comparing import affine, results
from tests.support.networks import relative_error


@pytest.fixture(autouse=True, params=[0, 2**60], ids=["onednn", "usual"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All products by one library, however small they are."""
    if request.param == 0 and not products.HAS_ONEDNN:
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(products, "_MIN_MULTIPLICATIONS", request.param)
    monkeypatch.setattr(products, "_MIN_MULTIPLICATIONS_OF_ONE", request.param)


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
    assert linear.choice(x, parameters).name == "onednn"
    assert linear.choice(x.requires_grad_(), parameters).name == "reference"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_narrow_map_in_float32_is_nearer_than_one_of_its_own_dtype(dtype: torch.dtype, bias: bool) -> None:
    arguments = torch.randn(2, 90, 33).requires_grad_(), affine(17, 33, bias=bias)
    exact, ours, plain = (
        results(run, arguments, kind)
        for run, kind in ((linear.reference, torch.float64), (linear_in_float32, dtype), (linear.reference, dtype))
    )
    for right, found, theirs in zip(exact, ours, plain, strict=True):
        assert found.dtype == theirs.dtype
        assert relative_error(found, right) <= 1.01 * relative_error(theirs, right)


@pytest.mark.parametrize("shape", [(7, 65), (2, 3, 7, 65), (3, 7, 0)])
def test_narrow_matrices_are_multiplied_in_blocks_of_float32(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_COPY_BYTES", 4 * 7 * 20)
    left, right = torch.randn(shape).bfloat16(), torch.randn(*shape[:-2], shape[-1], 5).bfloat16()
    found = products.multiply_in_float32(left, right)
    torch.testing.assert_close(found.double(), left.double() @ right.double(), rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("add", [False, True])
def test_narrow_batches_are_converted_a_few_at_a_time(add: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_COPY_BYTES", 4 * 7 * 9 * 2)
    monkeypatch.setattr(precision, "_NO_PRODUCTS", {torch.bfloat16})
    left, right = torch.randn(5, 7, 5).bfloat16(), torch.randn(5, 9, 5).bfloat16().mT
    out = torch.ones(5, 7, 9).bfloat16() if add else torch.full((5, 7, 9), torch.nan).bfloat16()
    batched_product(left, right, out, add=add)
    assert relative_error(out, left.double() @ right.double() + int(add)) < 2**-8


def test_dtypes_that_the_processor_has_no_products_of_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    x, parameters = torch.randn(4, 7).bfloat16(), Affine(torch.randn(5, 7))
    for converted, name in (({torch.bfloat16}, "float32"), (set(), "reference")):
        monkeypatch.setattr(precision, "_NO_PRODUCTS", converted)
        assert linear.choice(x, parameters).name == name
        assert multiply.choice(x, x.mT).name == name
    assert linear.choice(x.double(), parameters).name == "reference"
