"""Self-attention in blocks of rows equals its reference, however rows and queries are cut."""

from typing import Any

import pytest
import torch
from torch import Tensor

import helixfold.ops.cpu.attention
import helixfold.ops.cpu.self_attention
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.recomputed import intermediates
from helixfold.ops.self_attention import self_attention
from helixfold.ops.weights import SelfAttentionWeights
from tests.ops.comparing import affine, assert_as_near, assert_equal, mask, norm

# Of rows, elements of a row, channels, and heads; c / heads is 8, 16 or 32.
SHAPES = [(1, 1, 8, 1), (7, 63, 16, 2), (5, 65, 32, 1), (65, 7, 64, 8), (2, 256, 64, 2)]


def arguments(n: int, k: int, c: int, heads: int, *, b: int = 1, bias: bool = True, turned: bool = False) -> list[Any]:
    """Everything but the mask requires gradients; the norm's scale and offset are not 1 and 0."""
    x = torch.randn(b, k, n, c).transpose(1, 2) if turned else torch.randn(b, n, k, c)
    logits = torch.randn(b, heads, k, k).requires_grad_() if bias else None
    weights = SelfAttentionWeights(norm(c), affine(3 * c, c, bias=False), affine(c, c), affine(c, c))
    return [x.requires_grad_(), mask(b, n, k), logits, weights, heads]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows of projections at a time, a few queries of one row, and a bias that counts as large."""
    monkeypatch.setattr(helixfold.ops.cpu.self_attention, "_BLOCK_BYTES", 2**16)
    monkeypatch.setattr(helixfold.ops.cpu.attention, "_LOGITS_BYTES", 2**12)
    monkeypatch.setattr(helixfold.ops.cpu.attention, "_BIAS_ELEMENTS", 0)


@pytest.mark.parametrize(("n", "k", "c", "heads"), SHAPES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_values_and_gradients_equal_the_reference(n: int, k: int, c: int, heads: int, bias: bool) -> None:
    assert_equal(self_attention, self_attention.reference, arguments(n, k, c, heads, bias=bias))


@pytest.mark.parametrize(("n", "k", "c", "heads"), SHAPES[1:3])
@pytest.mark.usefixtures("small_blocks")
def test_small_blocks_of_turned_samples_equal_the_reference(n: int, k: int, c: int, heads: int) -> None:
    given = arguments(n, k, c, heads, b=2, turned=True)
    assert_equal(self_attention, self_attention.reference, given)
    given[1] = torch.ones_like(given[1])
    assert_equal(self_attention, self_attention.reference, given)


def test_maps_may_have_all_offsets_or_none() -> None:
    *given, weights, heads = arguments(3, 7, 16, 2)
    bare = [affine(width, 16, bias=False) for width in (48, 16, 16)]
    for others in (weights._replace(qkv=affine(48, 16)), SelfAttentionWeights(weights.norm, *bare)):
        assert_equal(self_attention, self_attention.reference, [*given, others, heads])


@pytest.mark.parametrize(("n", "k", "c", "heads"), SHAPES[1:4])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_bfloat16_is_at_most_twice_as_far_off_as_the_reference(n: int, k: int, c: int, heads: int, bias: bool) -> None:
    assert_as_near(self_attention, self_attention.reference, arguments(n, k, c, heads, bias=bias))


@pytest.mark.usefixtures("small_blocks")
def test_small_blocks_in_bfloat16_are_at_most_twice_as_far_off() -> None:
    assert_as_near(self_attention, self_attention.reference, arguments(5, 65, 32, 2, b=2))


def test_the_change_lies_in_memory_as_the_stream_does() -> None:
    for turned in (False, True):
        given = arguments(4, 6, 8, 1, turned=turned)
        with torch.no_grad():
            assert self_attention(*given).stride() == given[0].stride()


def test_a_training_pass_keeps_hardly_more_than_the_stream() -> None:
    given = arguments(64, 33, 16, 2)
    kept: dict[int, int] = {}

    def keep(each: Tensor) -> Tensor:
        kept[each.data_ptr()] = each.numel()
        return each

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each), intermediates("recomputed"):
        self_attention(*given)
    assert sum(kept.values()) < 1.5 * given[0].numel()


def test_the_backend_says_what_it_leaves_to_the_reference() -> None:
    given = arguments(2, 3, 8, 1)
    assert self_attention.choice(*given).name == "rows"
    assert "float64" in str(
        self_attention.unsupported_reasons(DEVICE_MODELS["cpu"], given[0].double(), *given[1:])["rows"]
    )
    assert "nothing" in str(
        self_attention.unsupported_reasons(DEVICE_MODELS["cpu"], given[0][:, :0], *given[1:])["rows"]
    )
    assert self_attention(given[0][:, :0], given[1][:, :0], *given[2:]).shape == (1, 0, 3, 8)
