"""The kernel gives what the reference gives; without a GPU it runs in Triton's interpreter."""

import importlib
from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from helixfold.ops.adam import AdamBuffers
from helixfold.ops.constants import LINE
from helixfold.ops.fused_adam import fused_adam
from tests.ops.adam_inputs import STEP, buffers, copied, gradient_and_scale
from tests.ops.comparing import DEVICE


@pytest.fixture(scope="module")
def kernel() -> Callable[..., None]:
    """The function that launches the kernel."""
    pytest.importorskip("triton")
    return importlib.import_module("helixfold.ops.triton.fused_adam").fused_adam_triton


def moved(state: AdamBuffers) -> AdamBuffers:
    return AdamBuffers(
        **{
            field.name: None if (value := getattr(state, field.name)) is None else value.to(DEVICE)
            for field in fields(state)
        }
    )


def assert_rounded(working: Tensor, master: Tensor) -> None:
    """The interpreter cuts digits off where a GPU rounds."""
    expected = master[: len(working)].bfloat16()
    if DEVICE == "cuda":
        assert working.equal(expected)
    torch.testing.assert_close(working, expected, rtol=2**-7, atol=0)


# Blocks hold 32 lines: less than one, one, and several with a remainder; working copies that end within a block.
@pytest.mark.parametrize(
    ("lines", "working", "uniform"),
    [
        (1, None, True),
        (1, 1, False),
        (32, 32, True),
        (33, 31, False),
        (101, 34, True),
        (101, 34, False),
        (70, None, False),
    ],
)
def test_the_kernel_equals_the_reference(
    kernel: Callable[..., None], lines: int, working: int | None, uniform: bool
) -> None:
    state = buffers(lines, working)
    expected = copied(state)
    # The gradient of a rounded working copy is rounded, too.
    dtype = torch.float32 if working is None else torch.bfloat16
    gradient, scale = gradient_and_scale(lines, uniform=uniform, dtype=dtype)
    fused_adam.reference(expected, gradient.clone(), scale, STEP)
    # What lies behind the buffers is not touched.
    whole = torch.full((lines * LINE + 1024,), torch.nan, dtype=dtype, device=DEVICE)
    whole[: lines * LINE] = gradient
    ours = moved(state)
    kernel(ours, whole[: lines * LINE], scale.to(DEVICE), STEP)
    assert (whole[: lines * LINE] == 0).all()
    assert whole[lines * LINE :].isnan().all()
    for field in fields(state):
        found, right = getattr(ours, field.name), getattr(expected, field.name)
        if field.name != "working":
            torch.testing.assert_close(found.cpu(), right, rtol=2e-6, atol=1e-9)
        elif right is not None:
            assert_rounded(found, ours.master)


def test_the_working_copy_is_written_to_its_end_only(kernel: Callable[..., None]) -> None:
    state = moved(buffers(40, None))
    behind = torch.full((40 * LINE,), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    gradient, scale = gradient_and_scale(40, uniform=True)
    kernel(
        AdamBuffers(
            master=state.master,
            first_moment=state.first_moment,
            second_moment=state.second_moment,
            average=state.average,
            working=behind[: 35 * LINE],
        ),
        gradient.to(DEVICE),
        scale.to(DEVICE),
        STEP,
    )
    assert_rounded(behind[: 35 * LINE], state.master)
    assert behind[35 * LINE :].isnan().all()
