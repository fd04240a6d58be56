"""The kernels of the norm of a residual sum give what the reference gives; Triton's interpreter runs them here."""

import pytest
import torch
from torch import Tensor

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.residual import residual_norm
from helixfold.ops.weights import Affine
from tests.ops.comparing import FLOOR, assert_as_near, assert_equal, by_triton, norm

pytest.importorskip("triton")
BY_TRITON = by_triton(residual_norm)


def arguments(*shape: int, dropout: bool) -> list[Tensor | Affine]:
    given = [(3 * torch.randn(shape) + 2).requires_grad_() for _ in range(2)]
    mask = [(torch.rand(shape) > 0.3).float() / 0.7] if dropout else []
    return [*given, norm(shape[-1]), *mask]


@pytest.mark.parametrize(("shape", "dropout"), [((2, 7, 63), False), ((1, 9, 384), True)])
def test_outputs_and_gradients_are_the_references(shape: tuple[int, ...], dropout: bool) -> None:
    given = arguments(*shape, dropout=dropout)
    assert_equal(BY_TRITON, residual_norm.reference, given)
    if not dropout:
        assert_as_near(BY_TRITON, residual_norm.reference, given, FLOOR)


def test_inputs_of_any_strides_are_taken() -> None:
    given = arguments(3, 5, 16, dropout=True)
    strided = [each.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for each in given[:2]]
    assert_equal(BY_TRITON, residual_norm.reference, [*strided, *given[2:]])


def test_it_refuses_what_it_cannot_compute() -> None:
    def unsupported_reason(*given: Tensor | Affine) -> str | None:
        return residual_norm.unsupported_reasons(DEVICE_MODELS["h100"], *given)["triton"]

    stream, change, scale, mask = arguments(1, 3, 16, dropout=True)
    assert unsupported_reason(stream, change, scale, mask) is None
    assert unsupported_reason(stream, change.bfloat16(), scale) is not None
    assert unsupported_reason(stream.double(), change.double(), scale) is not None
    assert unsupported_reason(stream, change, scale, mask.requires_grad_()) is not None
    assert unsupported_reason(stream[:, :0], change[:, :0], scale) is not None
