"""Global attention in blocks of rows equals its reference, however rows are cut."""

from typing import Any

import pytest
import torch

import helixfold.ops.cpu.attention
import helixfold.ops.cpu.global_attention
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.global_attention import global_attention
from helixfold.ops.weights import GlobalAttentionWeights
from tests.ops.comparing import affine, assert_as_near, assert_equal, mask, norm

# Of rows, elements of a row, channels, and heads.
SHAPES = [(1, 1, 8, 1), (7, 63, 32, 4), (63, 7, 24, 3), (5, 256, 64, 8), (3, 600, 16, 2)]


def arguments(
    n: int, k: int, c: int, heads: int, *, b: int = 1, turned: bool = False, offsets: bool = True
) -> list[Any]:
    """Everything but the mask requires gradients; the second row's elements are all masked."""
    x = torch.randn(b, k, n, c).transpose(1, 2) if turned else torch.randn(b, n, k, c)
    shared = [affine(c // heads, c, bias=False) for _ in range(2)]
    maps = [affine(c, c, bias=False), *shared, affine(c, c, bias=offsets), affine(c, c, bias=offsets)]
    return [x.requires_grad_(), mask(b, n, k), GlobalAttentionWeights(norm(c), *maps), heads]


@pytest.mark.parametrize(("n", "k", "c", "heads"), SHAPES)
def test_values_and_gradients_equal_the_reference(n: int, k: int, c: int, heads: int) -> None:
    given = arguments(n, k, c, heads)
    assert global_attention.choice(*given).name == "rows"
    assert_equal(global_attention, global_attention.reference, given)


def test_small_blocks_of_turned_samples_equal_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helixfold.ops.cpu.global_attention, "_BLOCK_BYTES", 2**16)
    monkeypatch.setattr(helixfold.ops.cpu.attention, "_ROWS_BYTES", 2**13)
    given = arguments(7, 65, 32, 4, b=2, turned=True, offsets=False)
    assert_equal(global_attention, global_attention.reference, given)
    given[1] = torch.ones_like(given[1])
    assert_equal(global_attention, global_attention.reference, given)


@pytest.mark.parametrize(("n", "k", "c", "heads"), SHAPES[1:])
def test_bfloat16_is_at_most_twice_as_far_off_as_the_reference(n: int, k: int, c: int, heads: int) -> None:
    assert_as_near(global_attention, global_attention.reference, arguments(n, k, c, heads))


def test_the_change_lies_in_memory_as_the_stream_does() -> None:
    for turned in (False, True):
        given = arguments(4, 6, 8, 1, turned=turned)
        with torch.no_grad():
            assert global_attention(*given).stride() == given[0].stride()


def test_the_backend_says_what_it_leaves_to_the_reference() -> None:
    x, *others = arguments(2, 3, 8, 1)
    assert "float64" in str(global_attention.unsupported_reasons(DEVICE_MODELS["cpu"], x.double(), *others)["rows"])
    assert "nothing" in str(global_attention.unsupported_reasons(DEVICE_MODELS["cpu"], x[:, :0], *others)["rows"])
    others[1] = others[1]._replace(query=affine(8, 8))
    assert "bias" in str(global_attention.unsupported_reasons(DEVICE_MODELS["cpu"], x, *others)["rows"])
