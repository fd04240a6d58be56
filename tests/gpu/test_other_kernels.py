"""Kernels that write in place or compute their own gradients, and the list of kernels that this folder tests."""

from dataclasses import fields

import pytest
import torch

from helixfold.ops.constants import LINE
from helixfold.ops.dispatch import forced
from helixfold.ops.fused_adam import fused_adam
from helixfold.ops.structure.aligned_errors import aligned_errors
from tests.gpu.cases import CASES
from tests.gpu.devices import on_devices
from tests.ops.adam_inputs import STEP, buffers, copied, gradient_and_scale
from tests.ops.comparing import poisoned
from tests.ops.operators import all_operators
from tests.ops.triton.test_aligned_errors import arguments

pytest.importorskip("triton")


def test_every_operator_with_a_kernel_is_tested_here() -> None:
    with_kernel = {
        name for name, op in all_operators().items() if any(backend.name == "triton" for backend in op.backends)
    }
    assert with_kernel == {case.op.name for case in CASES.values()} | {"fused_adam", "aligned_errors"}


# Lines of parameters: all of the network's, and more elements than 32 bits count.
@pytest.mark.parametrize(("device", "lines"), on_devices([5], [93 * 2**20 // LINE, 2**31 // LINE + 3]))
def test_an_optimizer_step_equals_the_reference(device: str, lines: int) -> None:
    # Random numbers of few lines, repeated: the reference on all of them would take all memory.
    distinct = 5
    repeats = lines // distinct
    few = buffers(distinct, distinct)
    gradient, scale = gradient_and_scale(distinct, uniform=False)
    expected = copied(few)
    fused_adam.reference(expected, gradient.clone(), scale, STEP)
    many = type(few)(
        **{each.name: getattr(few, each.name).to(device).repeat(repeats) for each in fields(few)}
    )  # fmt: skip
    with forced("triton") as used:
        fused_adam(many, gradient.to(device).repeat(repeats), scale.to(device).repeat(repeats), STEP)
    assert used["fused_adam"] == 1
    for each in fields(few):
        found = getattr(many, each.name).view(repeats, -1)
        assert torch.equal(found[0], found[-1])
        tolerance = 2**-7 if found.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(found[-1].cpu(), getattr(expected, each.name), rtol=tolerance, atol=1e-7)


# Structures, frames, points: those of a crop in training; the last has remainders.
@pytest.mark.parametrize(
    ("device", "sizes"), on_devices([(3, 7, 33)], [(1, 2048, 3584), (3, 256, 256), (2, 3071, 5377)])
)
def test_errors_of_points_in_frames_equal_the_reference(device: str, sizes: tuple[int, int, int]) -> None:
    with torch.device(device):
        given = arguments(*sizes)
    with poisoned(), forced("triton") as used:
        found = aligned_errors(*given)
    assert used["aligned_errors"] == 1
    for ours, exact in zip(found, aligned_errors.reference(*(each.double() for each in given)), strict=True):
        tolerance = 1e-4 if device == "cuda" else 1e-5
        torch.testing.assert_close(
            ours.double(), exact, rtol=tolerance, atol=tolerance * float(exact.abs().max() + 1e-3)
        )
