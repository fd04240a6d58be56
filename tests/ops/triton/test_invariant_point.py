"""Invariant point attention's kernels give what the reference gives; without a GPU Triton's interpreter runs them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.ops.card import CARDS
from helixfold.ops.dispatch import forced
from helixfold.ops.invariant_point import invariant_point_attention
from tests.ops.comparing import assert_equal
from tests.ops.cpu.test_invariant_point import KEY_MASK, MASK, PAIR, arguments

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def on_device(given: Any) -> Any:
    if isinstance(given, Tensor):
        return given.to(DEVICE)
    return None if given is None else type(given)(*map(on_device, given))


def by_triton(*given: Any) -> tuple[Tensor, ...]:
    with forced("triton") as used:
        found = invariant_point_attention(*map(on_device, given))
    assert used["invariant_point_attention"] == 1
    return found


@pytest.mark.parametrize(
    ("i", "j", "options"),
    [
        (3, 17, {"b": 2}),
        (5, 7, {"h": 1}),
        (4, 33, {"h": 12, "c_z": 128}),
        (1, 65, {"h": 12}),
        (3, 40, {"extent": 5.0}),
    ],
)
def test_outputs_and_gradients_equal_the_references(i: int, j: int, options: dict[str, Any]) -> None:
    assert_equal(by_triton, invariant_point_attention.reference, arguments(i, j, **{"c_z": 32, **options}), 2e-5)


def test_a_single_key_gets_all_weight() -> None:
    """Many gradients are 0 then, but for rounding."""
    assert_equal(by_triton, invariant_point_attention.reference, arguments(1, 1, c_z=32), tolerance=1e-2)


def test_points_far_from_the_origin_lose_no_digits() -> None:
    assert_equal(by_triton, invariant_point_attention.reference, arguments(4, 20, c_z=32, center=30.0), 1e-4)


def test_padding_gets_and_gives_nothing() -> None:
    given = arguments(4, 9, c_z=32)
    with torch.no_grad():
        given[MASK][:, 2] = 0
        given[KEY_MASK][:, 5:] = 0
    assert_equal(by_triton, invariant_point_attention.reference, given)


@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_a_larger_pair_are_read_where_they_are(turned: bool) -> None:
    given = arguments(3, 9, c_z=32)
    expected = by_triton(*given)
    with torch.no_grad():
        pair = torch.randn(1, 9, 8, 32).transpose(1, 2) if turned else torch.randn(1, 8, 9, 32)
        given[PAIR] = pair[:, 4:7].copy_(given[PAIR])
        assert all(map(torch.equal, by_triton(*given), expected))


def test_a_pair_in_bfloat16_gets_a_gradient_in_bfloat16() -> None:
    given = arguments(4, 20, c_z=32)
    narrow = given[PAIR].detach().bfloat16()
    results = []
    for run, pair in ((by_triton, narrow), (invariant_point_attention.reference, narrow.float())):
        leaf = pair.clone().requires_grad_()
        found = run(*given[:PAIR], leaf, *given[PAIR + 1 :])
        (gradient,) = torch.autograd.grad(sum(each.square().sum() for each in found), leaf)
        assert gradient.dtype == pair.dtype
        results.append([*(each.detach().cpu() for each in found), gradient.float().cpu()])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-3)


def test_it_refuses_what_it_cannot_compute() -> None:
    def refusal(card: str, given: list[Any]) -> str | None:
        return invariant_point_attention.refusals(CARDS[card], *given)["triton"]

    assert refusal("h100", arguments(3, 4, c_z=128)) is None
    assert refusal("h100", arguments(3, 4, c_z=48)) == "it takes 32, 64 or 128 channels of an edge"
    assert (
        refusal("h100", [each.double() if isinstance(each, Tensor) else each for each in arguments(3, 4)]) is not None
    )
    assert "compute capability" in str(refusal("t4", arguments(3, 4, c_z=128)))
