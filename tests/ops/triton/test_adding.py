"""Kernels that add an update's change to its stream give what the change alone and an addition give."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.ops.dispatch import Op, forced
from helixfold.ops.outer_product import outer_product_mean
from helixfold.ops.residual import Residual, add_change, added
from helixfold.ops.self_attention import self_attention
from helixfold.ops.transition import transition
from helixfold.ops.triangle import triangle_multiplication, triangle_update
from helixfold.ops.weights import SelfAttentionWeights, TransitionWeights, TriangleWeights
from tests.ops.comparing import affine, assert_as_near, assert_equal, mask, norm

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter cuts digits off where a GPU rounds.
FLOOR = 0.0 if DEVICE == "cuda" else 2**-6


@pytest.fixture(autouse=True)
def on_the_gpu_if_there_is_one() -> Iterator[None]:
    with torch.device(DEVICE):
        yield


def check(op: Op[Any, Tensor], *arguments: Any, kept: Tensor | None = None, in_float32: bool = True) -> None:
    """Operator and addition in one give the reference's outputs and gradients; the stream is the first argument."""

    def ours(stream: Tensor, *rest: Any) -> Tensor:
        mask = None if kept is None else kept.to(stream.dtype)
        with forced("triton") as used:
            found = added(Residual(stream, mask), op, stream, *rest)
        assert used == {op.name: 1}
        return found

    def reference(stream: Tensor, *rest: Any) -> Tensor:
        mask = None if kept is None else kept.to(stream.dtype)
        return add_change.reference(stream, op.reference(stream, *rest), mask)

    if in_float32:
        assert_equal(ours, reference, arguments)
    assert_as_near(ours, reference, arguments, FLOOR)
    assert_in_place(op, *arguments, kept=kept)


def assert_in_place(op: Op[Any, Tensor], stream: Tensor, *rest: Any, kept: Tensor | None = None) -> None:
    """Where that is asked for, the sum is written into the stream's own memory."""
    stream = stream.detach().clone().bfloat16()
    kept = None if kept is None else kept.bfloat16()
    rest = tuple(each.bfloat16() if isinstance(each, Tensor) and each.requires_grad else each for each in rest)
    with torch.no_grad(), forced("triton"):
        expected = added(Residual(stream, kept), op, stream, *rest)
        assert not expected.equal(stream)
        found = added(Residual(stream, kept, in_place=True), op, stream, *rest)
    assert found.data_ptr() == stream.data_ptr()
    assert found.equal(expected)


def dropout(shape: tuple[int, ...], shared: int | None) -> Tensor | None:
    """A dropout mask that is one along an axis, which may be transposed."""
    if shared is None:
        return None
    sizes = [1 if dim == shared else size for dim, size in enumerate(shape)]
    return torch.nn.functional.dropout(torch.ones(sizes), 0.25)


def turned(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize(
    ("shape", "is_turned"), [((2, 7, 65, 32), False), ((1, 3, 5, 128), True), ((1, 2, 9, 256), False)]
)
def test_a_transition(shape: tuple[int, ...], is_turned: bool) -> None:
    x, c = torch.randn(shape) + 0.5, shape[-1]
    x = (turned(x) if is_turned else x).requires_grad_()
    weights = TransitionWeights(norm(c), affine(2 * c, c), affine(c, 2 * c))
    check(transition, x, weights)


@pytest.mark.parametrize(
    ("shared", "is_turned", "makes_both"),
    [
        (1, True, True),
        (1, False, False),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((None, False, True), (2, False, True))),
    ],
)
def test_a_triangle_multiplication(shared: int | None, is_turned: bool, makes_both: bool) -> None:
    b, n, c_z, c = 2, 9, 64, 16
    pair = torch.randn(b, n, n, c_z) + 0.5
    pair = (turned(pair) if is_turned else pair).requires_grad_()
    weights = TriangleWeights(norm(c_z), affine(c, c_z), affine(c, c_z), norm(c), affine(c_z, c), affine(c_z, c_z))
    kept = dropout(pair.shape, shared)
    if makes_both:
        check(triangle_update, pair, mask(b, n, n), affine(c, c_z), affine(c, c_z), weights, kept=kept)
    else:
        right = torch.randn(b, c, n, n).requires_grad_()
        check(triangle_multiplication, pair, mask(b, n, n), right, weights, kept=kept)


@pytest.mark.parametrize(
    ("shared", "is_turned", "made_of"),
    [
        (None, False, "nothing"),
        (1, True, "its rows"),
        (2, False, "its rows"),
        pytest.param(None, True, "its rows", marks=pytest.mark.long),
        (1, False, "others"),
    ],
)
def test_self_attention(shared: int | None, is_turned: bool, made_of: str) -> None:
    b, n, heads, c = 1, 5, 2, 32
    x = torch.randn(b, n, n, c) + 0.5
    x = (turned(x) if is_turned else x).requires_grad_()
    biases = {
        "nothing": None,
        "its rows": affine(heads, c, bias=False),
        "others": torch.randn(b, heads, n, n).requires_grad_(),
    }
    weights = SelfAttentionWeights(norm(c), affine(3 * c, c, bias=False), affine(c, c), affine(c, c))
    check(
        self_attention,
        x,
        mask(b, n, n),
        biases[made_of],
        weights,
        heads,
        kept=dropout(x.shape, shared),
        in_float32=False,
    )


@pytest.mark.parametrize(
    ("heads", "c", "is_wide"),
    [
        (8, 64, False),
        (2, 128, True),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((2, 128, False), (8, 256, True))),
    ],
)
def test_heads_of_other_widths(heads: int, c: int, is_wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helixfold.ops.triton.output_map.multiplies_from_shared_memory", lambda _: is_wide)
    x = (torch.randn(1, 2, 17, c) + 0.5).requires_grad_()
    weights = SelfAttentionWeights(norm(c), affine(3 * c, c, bias=False), affine(c, c), affine(c, c))
    check(self_attention, x, mask(1, 2, 17), None, weights, heads, in_float32=False)


@pytest.mark.parametrize("is_turned", [False, True])
def test_an_outer_product_mean(is_turned: bool) -> None:
    s, i, j, c, c_z = 5, 17, 9, 8, 32
    b = 2 if is_turned else 1
    left, right = torch.randn(b, i, s, c), torch.randn(b, s, j, c)
    masks = mask(b, i, s), mask(b, s, j)
    left, right = left * masks[0][..., None], right * masks[1][..., None]
    pair = torch.randn(b, i, j, c_z)
    pair = (turned(pair) if is_turned else pair).requires_grad_()
    given = pair, left.requires_grad_(), right.requires_grad_(), *masks, affine(c_z, c * c)

    def ours(pair: Tensor, *rest: Any) -> Tensor:
        with forced("triton") as used:
            found = added(Residual(pair), outer_product_mean, *rest)
        assert used == {"outer_product_mean": 1}
        return found

    def reference(pair: Tensor, *rest: Any) -> Tensor:
        return pair + outer_product_mean.reference(*rest)

    assert_equal(ours, reference, given)
    assert_as_near(ours, reference, given, FLOOR)
    pair = pair.detach().clone()
    with torch.no_grad(), forced("triton"):
        expected = added(Residual(pair), outer_product_mean, *given[1:])
        found = added(Residual(pair, in_place=True), outer_product_mean, *given[1:])
    assert found.data_ptr() == pair.data_ptr()
    assert found.equal(expected)
