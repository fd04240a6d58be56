"""The attention kernels give what the reference gives; without a GPU they run in Triton's interpreter."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helixfold.ops.attention import attention
from helixfold.ops.device_properties import DEVICE_MODELS
from tests.ops.comparing import DEVICE, assert_as_near, assert_equal, by_triton, mask, poisoned

pytest.importorskip("triton")
BY_TRITON = by_triton(attention)
Given = list[Tensor | None]


def inputs(*shape: int, bias: bool = True, gate: bool = True) -> Given:
    """Views of projections (b n k h d) and of a bias (b q k h); the second row has no keys that count."""
    b, n, h, q, k, d = shape
    query, key, value, gates = (torch.randn(b, n, size, h, d).transpose(2, 3) for size in (q, k, k, q))
    given = [query, key, value, mask(b, n, k), None, None]
    if bias:
        given[4] = torch.randn(b, q, k, h).permute(0, 3, 1, 2)
    if gate:
        given[5] = gates
    return [None if each is None else each.requires_grad_(index != 3) for index, each in enumerate(given)]


# Tiles are of 16 to 64 in float32; a bias whose length is a multiple of 16 is read where it is.
SHAPES = [
    ((1, 1, 2, 1, 7, 8), True, True),
    ((2, 3, 1, 7, 7, 16), True, True),
    ((1, 2, 1, 63, 65, 32), True, False),
    ((1, 3, 1, 65, 7, 8), True, True),
    ((1, 1, 1, 1, 65, 64), False, True),
    ((1, 2, 1, 65, 48, 8), False, True),
    ((1, 1, 1, 256, 256, 8), True, True),
]


@pytest.mark.parametrize(("shape", "bias", "gate"), SHAPES)
def test_results_and_gradients_equal_the_reference(shape: tuple[int, ...], bias: bool, gate: bool) -> None:
    assert_equal(BY_TRITON, attention.reference, inputs(*shape, bias=bias, gate=gate))


# Tiles are of up to 128 in bfloat16.
@pytest.mark.parametrize(
    ("shape", "bias", "gate"),
    [((1, 2, 1, 130, 129, 8), True, True), ((1, 2, 1, 7, 63, 32), False, True)],
)
def test_bfloat16_is_as_near_as_plain_bfloat16(shape: tuple[int, ...], bias: bool, gate: bool) -> None:
    assert_as_near(BY_TRITON, attention.reference, inputs(*shape, bias=bias, gate=gate))


@pytest.mark.parametrize("turned", [False, True])
def test_views_of_one_projection_are_read_where_they_are(turned: bool) -> None:
    """As triangle attention has them at the starting and at the ending node: no copy of a pair tensor."""
    projection, mask_of_pair = torch.randn(1, 3, 3, 3, 2, 8), mask(1, 3, 3)
    if turned:
        projection, mask_of_pair = projection.transpose(1, 2), mask_of_pair.transpose(1, 2)
    query, key, value = projection.permute(3, 0, 1, 4, 2, 5)
    bias = torch.randn(1, 3, 3, 2).permute(0, 3, 2, 1) if turned else torch.randn(1, 3, 3, 2).permute(0, 3, 1, 2)
    given = [query, key, value, mask_of_pair, bias]
    assert_equal(BY_TRITON, attention.reference, [each.requires_grad_(each is not mask_of_pair) for each in given])


def test_the_result_is_a_view_that_makes_joining_the_heads_free() -> None:
    query, key, value, given_mask, *_ = inputs(1, 2, 2, 7, 7, 8)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            assert BY_TRITON(query, key, value, given_mask).transpose(2, 3).is_contiguous()


def test_a_row_without_keys_that_count_attends_evenly() -> None:
    query, key, value, given_mask, bias, _ = inputs(1, 3, 2, 7, 37, 8)
    with torch.no_grad(), poisoned():
        found = BY_TRITON(query, key, value, given_mask, bias)
        torch.testing.assert_close(found[:, 1].cpu(), value[:, 1].mean(2, keepdim=True).expand_as(found[:, 1]))


def test_without_a_gradient_for_the_bias_that_of_the_query_is_the_same() -> None:
    query, key, value, given_mask, bias, gate = inputs(1, 3, 1, 35, 33, 8)
    assert_equal(BY_TRITON, attention.reference, [query, key.detach(), value.detach(), given_mask, bias.detach(), gate])


def test_a_single_key_gets_everything() -> None:
    """Gradients of logits are differences of equal numbers then."""
    assert_equal(BY_TRITON, attention.reference, inputs(1, 2, 1, 5, 1, 8), tolerance=1e-3)


def test_rows_are_shared_among_programs_in_any_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """In groups that read the same bias, and in parts with sums of their own for its gradient."""
    monkeypatch.setattr("helixfold.ops.triton.attention_tiles._GROUP", 2)
    monkeypatch.setattr("helixfold.ops.triton.attention_gradients._PROGRAMS", 3)
    assert_equal(BY_TRITON, attention.reference, inputs(1, 5, 1, 7, 40, 8))
    assert_equal(BY_TRITON, attention.reference, inputs(1, 3, 2, 7, 9, 8, bias=False))


def test_a_gradient_that_is_one_number_expanded_is_read() -> None:
    query, key, value, given_mask, *_ = inputs(1, 2, 2, 7, 9, 8)
    given = [each.to(DEVICE) for each in (query, key, value)]
    ours, right = (
        torch.autograd.grad(op(*given, given_mask.to(DEVICE)).sum(), given[2])[0]
        for op in (BY_TRITON, attention.reference)
    )
    torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda query, key, value: (query.double(), key.double(), value.double()), "float64"),
        (lambda query, key, value: (query.bfloat16(), key, value), "differ in dtype"),
        (lambda query, key, value: (query[..., :5], key[..., :5], value[..., :5]), "head dim 5"),
        (lambda query, key, value: (query, key, value[..., :5]), "values and keys differ in channels"),
        (lambda query, key, value: (query, key[:, :, :1], value[:, :, :1]), "all heads have the same keys"),
        (lambda query, key, value: (query[:, :0], key[:, :0], value[:, :0]), "nothing"),
        (lambda query, key, value: (query, key, value), None),
    ],
)
def test_what_the_kernels_refuse_has_a_reason(change: Callable[..., tuple[Tensor, ...]], reason: str | None) -> None:
    query, key, value, given_mask, *_ = inputs(1, 2, 2, 7, 9, 8)
    changed = [each.to("meta") for each in change(query, key, value)]
    found = attention.unsupported_reasons(
        DEVICE_MODELS["h100"], *changed, given_mask[:, : changed[0].shape[1]].to("meta")
    )["triton"]
    assert found is None if reason is None else reason in found


@torch.no_grad()
def test_a_row_without_keys_is_the_mean_of_values_beside_large_logits() -> None:
    query, key, value, *others = inputs(1, 2, 1, 7, 7, 16, gate=False)
    assert query is not None
    assert value is not None
    mean = value[:, 1].mean(-2, keepdim=True)
    found = BY_TRITON(30 * query, key, value, *others)[:, 1].cpu()
    torch.testing.assert_close(found, mean.expand_as(found), atol=1e-6, rtol=1e-5)
