"""Kernels of invariant point attention give what the reference gives; without a GPU Triton's interpreter runs them."""

from typing import Any

import pytest
import torch

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.structure.point_attention import point_attention
from tests.ops.comparing import assert_equal, by_triton, poisoned
from tests.ops.point_arguments import MASK, MULTIMER, PAIR, TRANSLATION, point_arguments

pytest.importorskip("triton")
BY_TRITON = by_triton(point_attention)


@pytest.mark.parametrize(
    ("r", "rows", "options"),
    [
        (3, slice(None), {"h": 1, "floors": MULTIMER}),
        (17, slice(14, 17), {"h": 12, "c_z": 128, "d": 16, "q": 4, "p": 8}),
        pytest.param(33, slice(20, 21), {"h": 12, "q": 5, "p": 1}, marks=pytest.mark.long),
        (8, slice(0, 2), {"extent": 5.0, "q": 1}),
    ],
)
def test_outputs_and_gradients_equal_the_references(r: int, rows: slice, options: dict[str, Any]) -> None:
    assert_equal(BY_TRITON, point_attention.reference, point_arguments(r, rows, **options), 5e-5)


def test_a_single_key_gets_all_weight() -> None:
    """Many gradients are 0 then, but for rounding."""
    assert_equal(BY_TRITON, point_attention.reference, point_arguments(1), tolerance=1e-2)


def test_points_far_from_the_origin_lose_no_digits() -> None:
    assert_equal(BY_TRITON, point_attention.reference, point_arguments(9, slice(3, 5), center=30.0), 1e-4)


def test_padding_gets_and_gives_nothing() -> None:
    given = point_arguments(7)
    with torch.no_grad():
        given[MASK][:, :5], given[MASK][:, 5:] = 1, 0
        found, moved = BY_TRITON(*given), list(given)
        for index in (0, TRANSLATION):
            moved[index] = given[index].clone()
            moved[index][:, 5:] += 1
        moved[PAIR] = given[PAIR].clone()
        moved[PAIR][:, :, 5:] += 1
        torch.testing.assert_close(BY_TRITON(*moved)[:, :5], found[:, :5])
    assert_equal(BY_TRITON, point_attention.reference, given)


@pytest.mark.parametrize("transposed", [False, True])
def test_rows_of_a_larger_pair_are_read_where_they_are(transposed: bool) -> None:
    given = point_arguments(9, slice(3))
    expected = BY_TRITON(*given)
    with torch.no_grad():
        pair = torch.randn(1, 9, 8, 32).transpose(1, 2) if transposed else torch.randn(1, 8, 9, 32)
        given[PAIR] = pair[:, 4:7].copy_(given[PAIR])
        assert torch.equal(BY_TRITON(*given), expected)


def test_a_pair_in_bfloat16_gets_a_gradient_in_bfloat16() -> None:
    given = point_arguments(18, slice(2))
    narrow = given[PAIR].detach().bfloat16()
    results = []
    for run, pair in ((BY_TRITON, narrow), (point_attention.reference, narrow.float())):
        leaf = pair.clone().requires_grad_()
        found = run(*given[:PAIR], leaf, *given[PAIR + 1 :])
        (gradient,) = torch.autograd.grad(found.square().sum(), leaf)
        assert gradient.dtype == pair.dtype
        results.append([found.detach().cpu(), gradient.float().cpu()])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-3)


def test_a_second_backward_pass_finds_what_the_first_found() -> None:
    given = point_arguments(4)
    with poisoned():
        output = BY_TRITON(*given).square().sum()
        leaves = [*given[:MASK], given[PAIR]]
        first = torch.autograd.grad(output, leaves, retain_graph=True)
        assert all(map(torch.equal, torch.autograd.grad(output, leaves), first))


def test_it_refuses_what_it_cannot_compute() -> None:
    def unsupported_reason(device_model: str, given: list[Any]) -> str | None:
        return point_attention.unsupported_reasons(DEVICE_MODELS[device_model], *given)["triton"]

    assert unsupported_reason("h100", point_arguments(4, c_z=128)) is None
    assert unsupported_reason("h100", point_arguments(4, c_z=48)) == "an edge must have 32, 64 or 128 channels"
    assert "8 value points" in str(unsupported_reason("h100", point_arguments(4, p=9)))
    wide = point_arguments(4)
    wide[0] = wide[0].double()
    assert unsupported_reason("h100", wide) is not None
    assert "compute capability" in str(unsupported_reason("t4", point_arguments(4, c_z=128)))
