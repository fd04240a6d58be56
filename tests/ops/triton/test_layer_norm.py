"""The layer norm kernels give what the reference gives; without a GPU they run in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.linear import layer_norm
from tests.ops.comparing import FLOOR, assert_as_near, assert_equal, by_triton, norm

pytest.importorskip("triton")
BY_TRITON = by_triton(layer_norm)


def activations(*shape: int, turned: bool = False) -> Tensor:
    """Off centre; turned ones have their two middle dims swapped in memory."""
    x = 3 * torch.randn(shape) + 2
    return (x.transpose(1, 2).contiguous().transpose(1, 2) if turned else x).requires_grad_()


@pytest.mark.parametrize(
    ("shape", "turned"),
    [
        ((1,), False),
        ((7, 63), False),
        ((2, 3, 65, 32), True),
        ((1, 9, 7, 384), True),
        ((63, 512), False),
    ],
)
def test_any_batch_and_channels_equal_the_reference(shape: tuple[int, ...], turned: bool) -> None:
    given = (activations(*shape, turned=turned), norm(shape[-1]))
    assert_equal(BY_TRITON, layer_norm.reference, given)
    assert_as_near(BY_TRITON, layer_norm.reference, given, FLOOR)


def test_a_slice_and_an_expanded_gradient_are_read_by_their_strides() -> None:
    x = torch.randn(2, 5, 9, 48)[:, 1:, 2:7, 8:40]
    x = x.detach().requires_grad_()
    scale = norm(32)
    ours = torch.autograd.grad(BY_TRITON(x, scale).sum(), (x, *scale))
    for found, right in zip(ours, torch.autograd.grad(layer_norm.reference(x, scale).sum(), (x, *scale)), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)


def test_it_refuses_what_it_cannot_hold() -> None:
    wide = torch.empty(2, 513, device="meta")
    assert layer_norm.unsupported_reasons(DEVICE_MODELS["h100"], wide, norm(513))["triton"] is not None
    assert layer_norm.unsupported_reasons(DEVICE_MODELS["h100"], wide[:, :512], norm(512))["triton"] is None
    assert layer_norm.unsupported_reasons(DEVICE_MODELS["h100"], wide[:, :64].double(), norm(64))["triton"] is not None
    assert layer_norm.unsupported_reasons(DEVICE_MODELS["h100"], wide.T, norm(2))["triton"] is not None
