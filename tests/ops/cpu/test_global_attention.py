"""Global attention in blocks of rows equals its reference, however rows are cut."""

from typing import Any

import torch

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.global_attention import global_attention
from helixfold.ops.weights import GlobalAttentionWeights
from tests.ops.comparing import affine, assert_equal, mask, norm


def arguments(
    n: int, k: int, c: int, heads: int, *, b: int = 1, turned: bool = False, offsets: bool = True
) -> list[Any]:
    """Everything but the mask requires gradients; the second row's elements are all masked."""
    x = torch.randn(b, k, n, c).transpose(1, 2) if turned else torch.randn(b, n, k, c)
    shared = [affine(c // heads, c, bias=False) for _ in range(2)]
    maps = [affine(c, c, bias=False), *shared, affine(c, c, bias=offsets), affine(c, c, bias=offsets)]
    return [x.requires_grad_(), mask(b, n, k), GlobalAttentionWeights(norm(c), *maps), heads]


def test_gate_and_output_map_may_lack_offsets() -> None:
    given = arguments(7, 65, 32, 4, b=2, offsets=False)
    assert_equal(global_attention, global_attention.reference, given)


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
