"""The transition in blocks of rows equals its plain meaning."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from helixfold.ops.cpu import transition as module
from helixfold.ops.cpu.transition import transition_rows
from helixfold.ops.transition import transition
from helixfold.ops.weights import TransitionWeights
from tests.ops.comparing import SIZES, affine, assert_as_near, assert_equal, norm


def arguments(*shape: int, factor: int = 4) -> Sequence[Any]:
    c = shape[-1]
    x = (3 * torch.randn(shape) + 1).requires_grad_()
    return x, TransitionWeights(norm(c), affine(factor * c, c), affine(c, factor * c))


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_it_equals_the_reference(size: int, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks of 65 and of 90 rows, so that there are remainders.
    monkeypatch.setattr(module, "_HIDDEN_ELEMENTS", 65 * 32)
    monkeypatch.setattr(module, "_LARGE_HIDDEN_ELEMENTS", 90 * 32)
    monkeypatch.setattr(module, "_LARGE_STREAM", 0 if large else 2**40)
    assert_equal(transition_rows, transition.reference, arguments(1, 3, size, 8))
    assert_as_near(transition_rows, transition.reference, arguments(1, 3, size, 8))


def test_it_equals_the_reference_at_real_channels() -> None:
    assert_equal(transition_rows, transition.reference, arguments(2, 33, 31, 128))
    assert_as_near(transition_rows, transition.reference, arguments(1, 70, 256, factor=2))


def test_rows_may_be_turned_and_none() -> None:
    x, *parameters = arguments(2, 5, 9, 8)
    turned = x.detach().transpose(1, 2).requires_grad_()
    assert_equal(transition_rows, transition.reference, (turned, *parameters))
    assert transition_rows(x[:, :0], *parameters).shape == (2, 0, 9, 8)


def test_float64_is_left_to_the_reference() -> None:
    x, *parameters = arguments(1, 2, 3, 8)
    assert transition.choice(x, *parameters).name == "rows"
    assert transition.choice(x.double(), *parameters).name == "reference"
