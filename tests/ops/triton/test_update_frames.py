"""The kernels that update frames give what the reference gives; without a GPU they run in Triton's interpreter."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.structure.quaternions import quaternion_to_rotation
from helixfold.ops.structure.update_frames import update_frames
from tests.ops.comparing import assert_equal, by_triton

pytest.importorskip("triton")
BY_TRITON = by_triton(update_frames)


def arguments(b: int, r: int) -> list[Tensor]:
    quaternion = normalize(torch.randn(b, r, 4), dim=-1)
    given = [quaternion, quaternion_to_rotation(quaternion), 3 * torch.randn(b, r, 3), torch.randn(b, r, 6)]
    return [each.requires_grad_() for each in given]


@pytest.mark.parametrize(("b", "r"), [(1, 32), (2, 33)])
def test_outputs_and_gradients_equal_the_references(b: int, r: int) -> None:
    assert_equal(BY_TRITON, update_frames.reference, arguments(b, r))


def test_inputs_of_any_strides_are_taken() -> None:
    given = arguments(2, 9)
    strided = [each.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for each in given]
    assert_equal(BY_TRITON, update_frames.reference, strided)


def test_a_zero_update_changes_nothing_at_all() -> None:
    quaternion, translation = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]]), torch.randn(1, 1, 3)
    found = BY_TRITON(quaternion, torch.eye(3)[None, None], translation, torch.zeros(1, 1, 6))
    assert torch.equal(found[0].cpu(), quaternion)
    assert torch.equal(found[1].cpu(), torch.eye(3)[None, None])
    assert torch.equal(found[2].cpu(), translation)


def test_it_refuses_what_it_cannot_compute() -> None:
    given = [each.to("meta") for each in arguments(1, 3)]
    assert update_frames.unsupported_reasons(DEVICE_MODELS["h100"], *given)["triton"] is None
    assert (
        update_frames.unsupported_reasons(DEVICE_MODELS["h100"], *(each.double() for each in given))["triton"]
        is not None
    )
    assert (
        update_frames.unsupported_reasons(DEVICE_MODELS["h100"], *(each[:, :0] for each in given))["triton"] is not None
    )
