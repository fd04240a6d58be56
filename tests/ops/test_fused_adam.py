"""The fused update does what Adam's paper says, whichever backend carries it out."""

import math
from dataclasses import fields, replace

import pytest
import torch

from helixfold.ops import fused_adam as module
from helixfold.ops.constants import LINE
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.fused_adam import fused_adam
from tests.ops.adam_inputs import STEP, buffers, copied, gradient_and_scale

BACKENDS = fused_adam.backends
OTHERS = [each for each in BACKENDS if each.name != "reference"]
# Less than a chunk, a chunk, and several with a remainder.
SIZES = [(1, None), (5, 5), (8, 3), (21, 17), (64, 64), (21, None)]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_OF_A_THREAD", 8 * LINE)


def test_the_reference_equals_the_paper_written_out_in_float64() -> None:
    state = buffers(3, 2)
    gradient, scale = gradient_and_scale(3, uniform=False)
    p, m, v, e = (getattr(state, name).double() for name in ("master", "first_moment", "second_moment", "average"))
    g = gradient.double() * scale.double().repeat_interleave(LINE)
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g**2
    p = p * (1 - 1e-3 * 0.01)
    p = p - 1e-3 * (m / (1 - 0.9**7)) / ((v / (1 - 0.999**7)).sqrt() + 1e-6)
    e = 0.99 * e + 0.01 * p
    fused_adam.reference(state, gradient, scale, STEP)
    for found, expected in zip(
        (state.master, state.first_moment, state.second_moment, state.average), (p, m, v, e), strict=True
    ):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)
    assert state.working is not None
    assert state.working.equal(state.master[: 2 * LINE].bfloat16())
    assert (gradient == 0).all()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("lines", "working"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("uniform", [True, False])
def test_chunks_equal_the_reference(lines: int, working: int | None, uniform: bool, dtype: torch.dtype) -> None:
    state = buffers(lines, working)
    expected = copied(state)
    gradient, scale = gradient_and_scale(lines, uniform=uniform, dtype=dtype)
    fused_adam.reference(expected, gradient.clone(), scale, STEP)
    assert fused_adam.choice(state, gradient, scale, STEP).name == "chunks"
    fused_adam(state, gradient, scale, STEP)
    for field in fields(state):
        found, right = getattr(state, field.name), getattr(expected, field.name)
        if field.name != "working":
            torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-9)
        elif right is not None:
            torch.testing.assert_close(found, right, rtol=2**-7, atol=0)
            assert found.equal(state.master[: len(found)].bfloat16())
    assert (gradient == 0).all()


@pytest.mark.parametrize("run", [each.run for each in BACKENDS[1:]], ids=[each.name for each in BACKENDS[1:]])
def test_padding_stays_zero(run: object) -> None:
    state, (gradient, scale) = buffers(2, 2), gradient_and_scale(2, uniform=True)
    for flat in (state.master, state.first_moment, state.second_moment, state.average, gradient):
        flat[LINE + 3 :] = 0
    assert callable(run)
    run(state, gradient, scale, replace(STEP, weight_decay=0.1))
    for field in fields(state):
        assert (getattr(state, field.name)[LINE + 3 :] == 0).all()


def test_corrections_are_those_of_the_step() -> None:
    assert STEP.correction1 == pytest.approx(1 - 0.9**7)
    assert math.isclose(replace(STEP, count=1).correction2, 0.001)


def test_a_backend_refuses_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (buffers(1, None), *gradient_and_scale(1, uniform=True), STEP)
    assert fused_adam.unsupported_reasons(DEVICE_MODELS["cpu"], *given) == {
        "triton": "for cuda, not cpu",
        "chunks": None,
        "reference": None,
    }
    monkeypatch.delattr(torch, "_fused_adamw_")
    assert "_fused_adamw_" in (fused_adam.unsupported_reasons(DEVICE_MODELS["cpu"], *given)["chunks"] or "")
    assert fused_adam.choice(*given).name == "reference"
