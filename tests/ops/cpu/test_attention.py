"""Attention a few rows at a time equals its reference, however rows and queries are cut."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.ops.attention import attention
from helixfold.ops.device_properties import DEVICE_MODELS
from tests.ops.comparing import assert_as_near, assert_equal, mask

# Of rows, heads, queries, keys, width of queries and keys, width of values.
SHAPES = [
    (1, 1, 1, 1, 8, 8),
    (7, 4, 63, 65, 8, 8),
    (3, 2, 65, 7, 16, 5),
    (65, 3, 1, 63, 32, 32),
    (2, 2, 256, 63, 8, 17),
]


def arguments(
    shape: tuple[int, ...], *, b: int = 1, bias: bool = True, gate: bool = True, shared: bool = False
) -> list[Any]:
    """Everything but the mask requires gradients; queries, keys and values are views that turn heads inwards."""
    n, h, q, k, d, c = shape
    of_keys = 1 if shared else h
    query = torch.randn(b, n, q, h, d).transpose(2, 3).requires_grad_()
    key, value = (torch.randn(b, n, k, of_keys, width).transpose(2, 3).requires_grad_() for width in (d, c))
    logits = torch.randn(b, h, q, k).requires_grad_() if bias else None
    gates = torch.randn(b, n, h, q, c).requires_grad_() if gate else None
    return [query, key, value, mask(b, n, k), logits, gates]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("more", [True, False], ids=["bias and gate", "neither"])
def test_queries_may_be_more_or_fewer_than_keys(
    shape: tuple[int, ...], more: bool, request: pytest.FixtureRequest
) -> None:
    if more:
        request.getfixturevalue("small_blocks")
    given = arguments(shape, b=1 + more, bias=more, gate=more)
    assert attention.choice(*given).name == "rows"
    assert_equal(attention, attention.reference, given)
    if shape[2] > 1:
        assert_as_near(attention, attention.reference, given)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_heads_may_share_their_keys(bias: bool) -> None:
    assert_equal(attention, attention.reference, arguments((5, 4, 3, 65, 8, 7), b=2, bias=bias, shared=True))


def test_many_tiny_rows_equal_the_reference() -> None:
    """As in the attention of edges over templates."""
    given = arguments((1000, 4, 1, 4, 16, 16), bias=False, gate=False)
    assert_equal(attention, attention.reference, given)
    assert_as_near(attention, attention.reference, given)


def test_gradients_may_be_asked_of_some_arguments_only() -> None:
    query, key, value, masked, bias, _ = arguments((3, 2, 7, 9, 8, 8), gate=False)
    given = [query.detach(), key, value.detach(), masked, bias.detach(), None]
    assert_equal(attention, attention.reference, given)


def test_a_training_pass_keeps_no_logits() -> None:
    given = arguments((8, 1, 64, 64, 8, 8), gate=False)
    kept: dict[int, int] = {}

    def keep(each: Tensor) -> Tensor:
        kept[each.data_ptr()] = each.numel()
        return each

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        attention(*given)
    assert sum(kept.values()) < 8 * 64 * 64


def test_the_backend_says_what_it_leaves_to_others() -> None:
    query, *others = arguments((2, 1, 3, 3, 8, 8))
    assert "float64" in str(attention.unsupported_reasons(DEVICE_MODELS["cpu"], query.double(), *others)["rows"])
    assert "nothing" in str(attention.unsupported_reasons(DEVICE_MODELS["cpu"], query[:, :0], *others)["rows"])
