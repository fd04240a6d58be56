"""The transition kernels give what the reference gives; without a GPU they run in Triton's interpreter."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.transition import transition
from helixfold.ops.weights import Affine, TransitionWeights
from tests.ops.comparing import FLOOR, affine, assert_as_near, assert_equal, by_triton, norm

pytest.importorskip("triton")
from helixfold.ops.triton import transition as subject

BY_TRITON = by_triton(transition)


def inputs(*shape: int, factor: int, turned: bool = False) -> tuple[Tensor, TransitionWeights]:
    """Activations off centre; turned ones have their two middle dims swapped in memory."""
    x, c = torch.randn(shape) + 0.5, shape[-1]
    x = x.transpose(1, 2).contiguous().transpose(1, 2) if turned else x
    return x.requires_grad_(), TransitionWeights(norm(c), affine(factor * c, c), affine(c, factor * c))


@pytest.mark.parametrize(
    ("shape", "factor", "turned"),
    [
        ((2, 7, 9, 32), 4, False),
        ((1, 7, 5, 128), 4, True),
        ((3, 7, 256), 4, False),
    ],
)
def test_other_channels_equal_the_reference(shape: tuple[int, ...], factor: int, turned: bool) -> None:
    given = inputs(*shape, factor=factor, turned=turned)
    assert_equal(BY_TRITON, transition.reference, given)
    assert_as_near(BY_TRITON, transition.reference, given, FLOOR)


@pytest.mark.parametrize("frozen", [(0, 1), (2,), (3,), (4,), (5,), range(6)], ids=str)
def test_frozen_parameters_get_no_gradients_and_the_others_get_theirs(
    frozen: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, computed = subject._transition_gradients, []

    def recorded(*arguments: Any, **constants: Any) -> tuple[Tensor | None, ...]:
        computed.append(compute(*arguments, **constants))
        return computed[-1]

    monkeypatch.setattr(subject, "_transition_gradients", recorded)
    x, weights = inputs(1, 7, 9, 32, factor=4)
    parameters = [each.detach() if index in frozen else each for index, each in enumerate(chain(*weights))]
    some = TransitionWeights(*(Affine(*parameters[first : first + 2]) for first in (0, 2, 4)))
    assert_equal(BY_TRITON, transition.reference, (x, some))
    (of_x, *gradients) = computed[0]
    assert of_x is not None
    # One kernel sums the gradients of the norm and of the last offset, so those of a frozen norm may be there.
    for index in frozen if len(frozen) == 6 else set(frozen) - {0, 1}:
        assert gradients[index] is None


def test_it_refuses_what_its_tiles_cannot_hold() -> None:
    def unsupported_reason(x: Tensor, hidden: int) -> str | None:
        c = x.shape[-1]
        weights = TransitionWeights(norm(c), affine(hidden, c), affine(c, hidden))
        return transition.unsupported_reasons(DEVICE_MODELS["h100"], x, weights)["triton"]

    x = torch.empty(2, 3, 64, device="meta", dtype=torch.bfloat16)
    assert unsupported_reason(x, 256) is None
    assert unsupported_reason(x, 72) is not None
    assert unsupported_reason(x[..., :24], 64) is not None
    assert unsupported_reason(x.float(), 256) == "products in float32 are left to cuBLAS"
    assert unsupported_reason(x.double(), 256) is not None
    assert unsupported_reason(x[:0], 256) is not None
