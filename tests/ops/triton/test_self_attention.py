"""Triton's self-attention gives what the reference gives; without a GPU its kernels are interpreted."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.dispatch import forced
from helixfold.ops.residual import Residual, added
from helixfold.ops.self_attention import self_attention
from helixfold.ops.weights import SelfAttentionWeights
from tests.ops.comparing import DEVICE, FLOOR, affine, assert_as_near, assert_equal, by_triton, mask, norm

pytest.importorskip("triton")
BY_TRITON = by_triton(self_attention)
REFERENCE = self_attention.reference


def arguments(b: int, n: int, k: int, *, heads: int = 2, d: int = 8, biased: bool = True, turned: bool = False) -> Any:
    """A stream off centre; turned ones have their rows and columns swapped in memory."""
    c = heads * d
    x = 2 * torch.randn(b, n, k, c) + 1
    x = (x.transpose(1, 2).contiguous().transpose(1, 2) if turned else x).requires_grad_()
    bias = torch.randn(b, heads, k, k).requires_grad_() if biased else None
    weights = SelfAttentionWeights(norm(c), affine(3 * c, c, bias=False), affine(c, c), affine(c, c))
    return [x, mask(b, n, k), bias, weights, heads]


@pytest.mark.parametrize(
    ("heads", "c", "is_wide"),
    [
        (1, 32, False),
        (8, 64, False),
        (2, 128, True),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((2, 128, False), (8, 256, True))),
    ],
)
def test_heads_of_other_widths_are_added_to_their_stream(
    heads: int, c: int, is_wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helixfold.ops.triton.output_map.multiplies_from_shared_memory", lambda _: is_wide)
    with torch.device(DEVICE):
        given = arguments(1, 2, 17, heads=heads, d=c // heads, biased=False)

    def run(x: Tensor, *rest: Any) -> Tensor:
        with forced("triton") as used:
            found = added(Residual(x), self_attention, x, *rest)
        assert used == {"self_attention": 1}
        return found

    assert_as_near(run, lambda x, *rest: x + REFERENCE(x, *rest), given, FLOOR)


@pytest.mark.parametrize("learns", ["bias", "others", "nothing"])
def test_a_bias_that_is_made_of_the_rows_passes_on_what_is_asked_for(learns: str) -> None:
    x, present, _, weights, heads = arguments(1, 5, 5)
    project = affine(heads, x.shape[-1], bias=False)
    for each in (*project[:1], *(each for part in weights for each in part if each is not None)):
        each.requires_grad_(learns == "bias" if each is project.weight else learns == "others")
    assert_equal(BY_TRITON, self_attention.reference, [x, present, project, weights, heads])


def test_a_bias_without_gradient_gets_none_and_changes_nothing() -> None:
    x, mask, bias, weights, heads = arguments(1, 3, 20)
    found, expected = (
        torch.autograd.grad(run(x, mask, bias.detach(), weights, heads).sum(), [x, *weights.qkv[:1]])
        for run in (BY_TRITON, self_attention.reference)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_gradient_that_is_expanded_from_one_number_is_read_where_it_is() -> None:
    x, mask, _, weights, heads = arguments(1, 3, 20, biased=False)
    found, expected = (
        torch.autograd.grad(run(x, mask, None, weights, heads).sum(), weights.out) for run in (BY_TRITON, REFERENCE)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_pass_without_gradients_gives_the_same() -> None:
    given = arguments(1, 4, 18, turned=True)
    with torch.no_grad():
        found = BY_TRITON(*given)
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
