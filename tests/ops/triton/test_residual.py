"""The kernel that adds a change gives what the reference gives; without a GPU it runs in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.residual import add_change
from tests.ops.comparing import FLOOR, assert_as_near, assert_equal, by_triton

pytest.importorskip("triton")


def kernel(stream: Tensor, change: Tensor, kept: Tensor | None) -> Tensor:
    return by_triton(add_change)(stream, change, None if kept is None else kept.to(stream.dtype))


def reference(stream: Tensor, change: Tensor, kept: Tensor | None) -> Tensor:
    return add_change.reference(stream, change, None if kept is None else kept.to(stream.dtype))


def turned(x: Tensor) -> Tensor:
    return x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(x.requires_grad)


def inputs(shape: tuple[int, ...], shared: int | None) -> tuple[Tensor, Tensor, Tensor | None]:
    stream, change = torch.randn(2, *shape)
    of_mask = [1 if dim == shared else size for dim, size in enumerate(shape)]
    kept = None if shared is None else torch.nn.functional.dropout(torch.ones(of_mask), 0.25)
    return stream.requires_grad_(), change.requires_grad_(), kept


@pytest.mark.parametrize(
    ("shape", "shared", "of_stream", "of_change"),
    [
        ((1, 1, 1, 7), 1, False, True),
        ((2, 7, 65, 32), 1, True, False),
        ((2, 63, 5, 24), 2, False, True),
        ((2, 63, 5, 24), 2, True, True),
        ((1, 3, 4, 256), 1, True, True),
        ((1, 2, 3, 300), 2, False, False),
    ],
)
def test_outputs_and_gradients_are_the_references(
    shape: tuple[int, ...], shared: int, of_stream: bool, of_change: bool
) -> None:
    stream, change, kept = inputs(shape, shared)
    given = (turned(stream) if of_stream else stream, turned(change) if of_change else change, kept)
    assert_equal(kernel, reference, given)
    assert_as_near(kernel, reference, given, FLOOR)


def test_a_turned_change_is_added_without_dropout() -> None:
    stream, change, _ = inputs((2, 7, 65, 32), None)
    assert_equal(kernel, reference, (stream, turned(change), None))


def test_gradients_lie_in_memory_as_what_they_are_of() -> None:
    stream, change, kept = inputs((2, 7, 9, 32), 1)
    change = turned(change)
    total = kernel(stream, change, kept)
    assert total.stride() == stream.stride()
    of_stream, of_change = torch.autograd.grad(total, (stream, change), torch.ones_like(total))
    assert of_stream.stride() == stream.stride()
    assert of_change.stride() == change.stride()


def test_it_leaves_to_pytorch_what_pytorch_does_as_well() -> None:
    stream, change, kept = inputs((1, 7, 9, 32), 1)
    assert add_change.unsupported_reasons(DEVICE_MODELS["h100"], stream, change, None)["triton"] is not None
    assert add_change.unsupported_reasons(DEVICE_MODELS["h100"], stream, turned(change), None)["triton"] is None
    assert add_change.unsupported_reasons(DEVICE_MODELS["h100"], stream, change, kept)["triton"] is None
    assert add_change.unsupported_reasons(DEVICE_MODELS["h100"], stream, change.double(), kept)["triton"] is not None
