"""The transition in blocks of rows equals its plain meaning."""

from collections.abc import Sequence
from typing import Any

import torch

from helixfold.ops.cpu.transition import transition_rows
from helixfold.ops.transition import transition
from helixfold.ops.weights import TransitionWeights
from tests.ops.comparing import affine, assert_equal, norm


def arguments(*shape: int, factor: int = 4) -> Sequence[Any]:
    c = shape[-1]
    x = (3 * torch.randn(shape) + 1).requires_grad_()
    return x, TransitionWeights(norm(c), affine(factor * c, c), affine(c, factor * c))


def test_rows_may_be_turned_and_none() -> None:
    x, *parameters = arguments(2, 5, 9, 8)
    turned = x.detach().transpose(1, 2).requires_grad_()
    assert_equal(transition_rows, transition.reference, (turned, *parameters))
    assert transition_rows(x[:, :0], *parameters).shape == (2, 0, 9, 8)


def test_float64_is_left_to_the_reference() -> None:
    x, *parameters = arguments(1, 2, 3, 8)
    assert transition.choice(x, *parameters).name == "rows"
    assert transition.choice(x.double(), *parameters).name == "reference"
