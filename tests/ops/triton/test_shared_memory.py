"""The table of shared memory is what a compiler finds, and cards with less are refused with a reason."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helixfold.execution.counter import Counter
from helixfold.ops.attention import attention
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties, simulated_device
from helixfold.ops.dispatch import recorded
from helixfold.ops.transition import transition
from helixfold.ops.triton import requirements
from helixfold.ops.triton.requirements import shared_memory
from helixfold.ops.weights import Affine, TransitionWeights

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("capability", "case"), [(80, "transition-64"), pytest.param(90, "triangle-32", marks=pytest.mark.long)]
)
def test_the_table_is_what_the_compiler_says(capability: int, case: str) -> None:
    triton = pytest.importorskip("triton", reason="kernels are compiled where triton is installed")
    if triton.__version__.split(".")[:2] != ["3", "9"]:
        pytest.skip(f"the table is of Triton 3.9, not {triton.__version__}")
    command = [sys.executable, "-m", "tests.ops.triton.shared_memory", str(capability), case]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)[case]
    version = divmod(capability, 10)
    assert found == [shared_memory(case, version, gradients=gradients) for gradients in (False, True)]


def refused(properties: DeviceProperties, c: int, *, gradients: bool) -> str | None:
    x = torch.empty(1, 8, 8, c, dtype=torch.bfloat16, device="meta", requires_grad=gradients)
    affines = [Affine(x.new_empty(*shape), x.new_empty(shape[0])) for shape in ((c,), (4 * c, c), (c, 4 * c))]
    with simulated_device(properties):
        return transition.unsupported_reasons(properties, x, TransitionWeights(*affines))["triton"]


def test_what_takes_more_than_a_card_has_is_left_to_the_next_backend() -> None:
    for device_model in ("h200", "a100", "rtx4090"):
        assert refused(DEVICE_MODELS[device_model], 256, gradients=True) is None
    little = replace(DEVICE_MODELS["rtx4090"], shared_memory=48 * 1024)
    assert refused(little, 256, gradients=False) == "its kernels need 50 KiB of shared memory, the GPU has 48"
    assert refused(little, 128, gradients=False) is None
    assert refused(little, 128, gradients=True) is None
    assert refused(replace(little, shared_memory=32 * 1024), 128, gradients=True) is not None
    # GeForce RTX 50 has the tiles of 8.x.
    assert refused(replace(DEVICE_MODELS["rtx4090"], capability=(12, 0)), 256, gradients=True) is None


def test_cards_before_ampere_have_other_backends() -> None:
    reason = "its kernels and bfloat16 need compute capability 8.0, the GPU has 7.5"
    assert refused(DEVICE_MODELS["t4"], 64, gradients=False) == reason
    heads = [torch.empty(1, 3, 2, 5, 16, dtype=torch.float16, device="meta") for _ in range(3)]
    with simulated_device(DEVICE_MODELS["t4"]):
        assert attention.choice(*heads, torch.empty(1, 3, 5, device="meta")).name == "sdpa"
        assert attention(*heads, torch.empty(1, 3, 5, device="meta")).shape == (1, 3, 2, 5, 16)


@pytest.mark.parametrize("device_model", ["t4", "v100"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_cards_before_ampere_train_without_stored_logits(device_model: str, dtype: torch.dtype) -> None:
    residues, heads = 250, 4
    query, key, value = (
        torch.empty(1, residues, heads, residues, 32, dtype=dtype, device="meta", requires_grad=True) for _ in range(3)
    )
    bias = torch.empty(1, heads, residues, residues, dtype=dtype, device="meta", requires_grad=True)
    mask = torch.ones(1, residues, residues, device="meta")
    peaks = {}
    for name, function in (("sdpa", attention), ("reference", attention.reference)):
        with simulated_device(DEVICE_MODELS[device_model]), Counter() as counter, recorded() as calls:
            output = function(query, key, value, mask, bias)
            kept = counter.live
            torch.autograd.grad(output, (query, key, value, bias), output)
        peaks[name] = kept, counter.peak
        assert len(calls) == (name == "sdpa")
    logits = heads * residues**3 * dtype.itemsize
    assert peaks["sdpa"][0] < logits < peaks["reference"][0]
    # The kernel writes the gradient of the bias for every row.
    assert logits < peaks["sdpa"][1] < 0.75 * peaks["reference"][1]


def test_cards_before_ampere_leave_bfloat16_to_the_reference() -> None:
    heads = [torch.empty(1, 3, 2, 5, 16, dtype=torch.bfloat16, device="meta") for _ in range(3)]
    with simulated_device(DEVICE_MODELS["v100"]):
        assert attention.choice(*heads, torch.empty(1, 3, 5, device="meta")).name == "reference"
        reasons = attention.unsupported_reasons(DEVICE_MODELS["v100"], *heads, torch.empty(1, 3, 5, device="meta"))
    assert reasons["sdpa"] == "bfloat16 needs compute capability 8.0"


def test_without_triton_kernels_are_refused_unless_a_card_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "triton_is_there", lambda: False)
    assert requirements.missing_requirement(DEVICE_MODELS["h200"]) == "triton is not installed"
    with simulated_device(DEVICE_MODELS["h200"]):
        assert requirements.missing_requirement(DEVICE_MODELS["h200"]) is None
