"""The kernels of FAPE's errors give what the reference gives; without a GPU they run in Triton's interpreter."""

import math

import pytest
import torch
from torch import Tensor

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.structure.aligned_errors import aligned_errors
from tests.ops.comparing import by_triton, mask, poisoned

pytest.importorskip("triton")


def arguments(n: int, f: int, p: int) -> list[Tensor]:
    """As FAPE makes them: frames are a view of (n f 3 7), points have a 1 as their last channel."""
    points = 5 * torch.randn(n, p, 7)
    points[..., 6] = 1
    clamp = torch.tensor([10.0, math.inf, 4.0])[:n]
    frames = torch.randn(n, f, 3, 7).transpose(1, 2)
    return [frames, points, mask(n, f, empty_row=False), mask(n, p, empty_row=False), clamp]


@pytest.mark.parametrize(("n", "f", "p"), [(1, 1, 1), (3, 7, 33), (2, 65, 40), (1, 32, 128)])
def test_the_sum_and_its_gradients_equal_the_references(n: int, f: int, p: int) -> None:
    given = arguments(n, f, p)
    with poisoned():
        found = by_triton(aligned_errors)(*given)
    for ours, exact in zip(found, aligned_errors.reference(*(each.double() for each in given)), strict=True):
        torch.testing.assert_close(ours.cpu().double(), exact, rtol=1e-5, atol=1e-5 * float(exact.abs().max() + 1e-3))


def test_it_refuses_what_it_cannot_compute() -> None:
    given = [each.to("meta") for each in arguments(2, 3, 4)]
    assert aligned_errors.unsupported_reasons(DEVICE_MODELS["h100"], *given)["triton"] is None
    assert (
        aligned_errors.unsupported_reasons(DEVICE_MODELS["h100"], *(each.double() for each in given))["triton"]
        is not None
    )
    assert (
        aligned_errors.unsupported_reasons(DEVICE_MODELS["h100"], *(each[..., :0] for each in given))["triton"]
        is not None
    )
