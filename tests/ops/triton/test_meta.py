"""On meta tensors kernels are launched without a GPU, and what is allocated is what real tensors take."""

import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

from helixfold.benchmark.op_cases import OpCase, Shape, op_cases
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties, simulated_device
from helixfold.ops.dispatch import forced
from helixfold.ops.linear import norm_linear
from helixfold.ops.triton.language import Kernel
from helixfold.ops.weights import Affine
from tests.ops.metering import metered

SHAPE = Shape(preset="tiny", residues=8, rows=4, extra_rows=5, dtype=torch.bfloat16)
# As few programs as there are without a GPU.
H200 = replace(DEVICE_MODELS["h200"], multiprocessors=4)


def by_triton(properties: DeviceProperties | None) -> ExitStack:
    place = ExitStack()
    place.enter_context(forced("triton"))
    if properties is not None:
        place.enter_context(simulated_device(properties))
    return place


def cases(device: str) -> list[OpCase]:
    """All operators at tiny channels, and one that is for more of them."""
    x = torch.ones(1, 8, 8, 64, dtype=torch.bfloat16, device=device, requires_grad=True)
    weights = [
        Affine(*(torch.ones(*shape, device=device, requires_grad=True) for shape in shapes))
        for shapes in (((64,), (64,)), ((4, 64), (4,)))
    ]
    return [*op_cases(SHAPE, device), OpCase(name="norm and map", calls=((norm_linear, (x, *weights)),))]


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "both passes"])
def test_bytes_and_results_are_those_of_real_tensors(gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = set()
    for real, meta in zip(cases("cpu"), cases("meta"), strict=True):
        if gradients and real.in_place:
            continue
        with forced("triton") as used, simulated_device(H200), torch.set_grad_enabled(gradients):
            meta()
        if not used:
            continue
        launched |= set(used)
        with monkeypatch.context() as patched:
            # Nothing is computed: the interpreter holds what kernels were given for longer than a GPU does.
            patched.setattr(Kernel, "_launch", lambda *_, **__: None)
            expected = metered(real, by_triton(None), gradients=gradients)
        found = metered(meta, by_triton(H200), gradients=gradients)
        assert found.results == expected.results, real.name
        assert found.live == expected.live, real.name
        assert found.peak == expected.peak, real.name
        assert found.launches > 0
    expected = {"attention", "triangle_operand", "triangle_multiplication", "transition", "outer_product_mean"}
    assert launched >= expected | {"norm_linear", "layer_norm", "add_change"}


def test_an_h200_is_described_without_triton() -> None:
    code = """
import sys
sys.modules["triton"] = None
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "triton" else found(name, *more)
import torch
from helixfold.execution.counter import Counter
from helixfold.ops.device_properties import DEVICE_MODELS, simulated_device
from helixfold.ops.attention import attention
heads = [torch.empty(1, 4, 2, 40, 16, dtype=torch.bfloat16, device="meta", requires_grad=True) for _ in range(3)]
mask, bias = torch.empty(1, 4, 40, device="meta"), torch.empty(1, 2, 40, 40, dtype=torch.bfloat16, device="meta")
with simulated_device(DEVICE_MODELS["h200"]), Counter() as counter:
    assert attention.choice(*heads, mask, bias).name == "triton"
    found = attention(*heads, mask, bias)
    torch.autograd.grad(found, heads, torch.empty_like(found))
assert attention.unsupported_reasons(DEVICE_MODELS["h200"], *heads, mask)["triton"] == "triton is not installed"
print(counter.launches)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 4
