"""Triton's self-attention gives what the reference gives; without a GPU its kernels are interpreted."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.dispatch import forced
from helixfold.ops.self_attention import self_attention
from helixfold.ops.weights import SelfAttentionWeights
from tests.ops.comparing import affine, assert_as_near, assert_equal, mask, norm

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REFERENCE = self_attention.reference


def by_triton(*arguments: Any) -> Tensor:
    def on_device(given: Any) -> Any:
        if isinstance(given, tuple):
            return type(given)(*map(on_device, given))
        return given.to(DEVICE) if isinstance(given, Tensor) else given

    with forced("triton") as used:
        found = self_attention(*map(on_device, arguments))
    assert used["self_attention"] == 1
    return found


def arguments(b: int, n: int, k: int, *, heads: int = 2, d: int = 8, biased: bool = True, turned: bool = False) -> Any:
    """A stream off centre; turned ones have their rows and columns swapped in memory."""
    c = heads * d
    x = 2 * torch.randn(b, n, k, c) + 1
    x = (x.transpose(1, 2).contiguous().transpose(1, 2) if turned else x).requires_grad_()
    bias = torch.randn(b, heads, k, k).requires_grad_() if biased else None
    weights = SelfAttentionWeights(norm(c), affine(3 * c, c, bias=False), affine(c, c), affine(c, c))
    return [x, mask(b, n, k), bias, weights, heads]


@pytest.mark.parametrize(
    ("shape", "biased", "turned"),
    [((2, 3, 17), True, False), ((1, 2, 70), True, True), ((2, 5, 16), False, True), ((1, 1, 1), False, False)],
)
def test_outputs_and_gradients_equal_the_reference(shape: tuple[int, int, int], biased: bool, turned: bool) -> None:
    given = arguments(*shape, biased=biased, turned=turned)
    assert_equal(by_triton, self_attention.reference, given)


@pytest.mark.parametrize(
    ("b", "k", "heads", "turned"),
    [(2, 5, 2, False), (1, 17, 1, True), pytest.param(1, 3, 4, False, marks=pytest.mark.long)],
)
def test_a_bias_is_made_of_the_same_rows(b: int, k: int, heads: int, turned: bool) -> None:
    x, present, _, weights, _ = arguments(b, k, k, heads=heads, d=16, turned=turned)
    given = [x, present, affine(heads, 16 * heads, bias=False), weights, heads]
    assert_equal(by_triton, self_attention.reference, given)
    assert_as_near(by_triton, self_attention.reference, given)


@pytest.mark.parametrize("learns", ["bias", "others", "nothing"])
def test_a_bias_that_is_made_of_the_rows_passes_on_what_is_asked_for(learns: str) -> None:
    x, present, _, weights, heads = arguments(1, 5, 5)
    project = affine(heads, x.shape[-1], bias=False)
    for each in (*project[:1], *(each for part in weights for each in part if each is not None)):
        each.requires_grad_(learns == "bias" if each is project.weight else learns == "others")
    assert_equal(by_triton, self_attention.reference, [x, present, project, weights, heads])


def test_heads_of_the_model_equal_the_reference() -> None:
    assert_equal(by_triton, self_attention.reference, arguments(1, 2, 40, heads=4, d=32))


@pytest.mark.parametrize("biased", [False, True])
def test_bfloat16_is_as_near_as_plain_bfloat16(biased: bool) -> None:
    given = arguments(1, 6, 33, d=16, biased=biased, turned=biased)
    assert_as_near(by_triton, self_attention.reference, given)


def test_a_bias_without_gradient_gets_none_and_changes_nothing() -> None:
    x, mask, bias, weights, heads = arguments(1, 3, 20)
    found, expected = (
        torch.autograd.grad(run(x, mask, bias.detach(), weights, heads).sum(), [x, *weights.qkv[:1]])
        for run in (by_triton, self_attention.reference)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_gradient_that_is_expanded_from_one_number_is_read_where_it_is() -> None:
    x, mask, _, weights, heads = arguments(1, 3, 20, biased=False)
    found, expected = (
        torch.autograd.grad(run(x, mask, None, weights, heads).sum(), weights.out) for run in (by_triton, REFERENCE)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_pass_without_gradients_gives_the_same() -> None:
    given = arguments(1, 4, 18, turned=True)
    with torch.no_grad():
        found = by_triton(*given)
    torch.testing.assert_close(found.cpu(), self_attention.reference(*given), rtol=1e-4, atol=1e-5)


def test_what_is_refused_has_a_reason() -> None:
    x, *others, weights, heads = arguments(1, 3, 20)
    reasons = [
        self_attention.unsupported_reasons(DEVICE_MODELS["h100"], *given)["triton"]
        for given in (
            (x, *others, weights, heads),
            (x.double(), *others, weights, heads),
            (x, *others, weights._replace(qkv=weights.gate), heads),
            (x, *others, weights, 4),
        )
    ]
    assert reasons == [
        None,
        "torch.float64 is left to the reference",
        "only the norm, the gate and the output map must have a bias",
        "4 heads of 16 channels are not of 8, 16, 32 or 64 each, or their number is not the stream's",
    ]
