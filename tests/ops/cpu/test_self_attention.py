"""Self-attention in blocks of rows equals its reference, however rows and queries are cut."""

from typing import Any

import torch
from torch import Tensor

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.recomputed import intermediates
from helixfold.ops.self_attention import self_attention
from helixfold.ops.weights import SelfAttentionWeights
from tests.ops.comparing import affine, assert_equal, mask, norm


def arguments(n: int, k: int, c: int, heads: int, *, b: int = 1, bias: bool = True, turned: bool = False) -> list[Any]:
    """Everything but the mask requires gradients; the norm's scale and offset are not 1 and 0."""
    x = torch.randn(b, k, n, c).transpose(1, 2) if turned else torch.randn(b, n, k, c)
    logits = torch.randn(b, heads, k, k).requires_grad_() if bias else None
    weights = SelfAttentionWeights(norm(c), affine(3 * c, c, bias=False), affine(c, c), affine(c, c))
    return [x.requires_grad_(), mask(b, n, k), logits, weights, heads]


def test_maps_may_have_all_offsets_or_none() -> None:
    *given, weights, heads = arguments(3, 7, 16, 2)
    bare = [affine(width, 16, bias=False) for width in (48, 16, 16)]
    for others in (weights._replace(qkv=affine(48, 16)), SelfAttentionWeights(weights.norm, *bare)):
        assert_equal(self_attention, self_attention.reference, [*given, others, heads])


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
