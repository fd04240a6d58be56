"""Choosing a device, and what is set for it."""

from types import SimpleNamespace

import pytest
import torch

from data_pipeline.io.errors import InputError
from helixfold.execution.device import pick_device, untested_warning
from helixfold.ops import device_properties
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties


def test_auto_finds_something_that_computes() -> None:
    assert torch.ones(2, device=pick_device()).sum() == 2


@pytest.mark.parametrize("name", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="device"):
        pick_device(name)


def test_a_cuda_device_becomes_the_current_one_and_sums_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    # The attribute itself is a setting of PyTorch that this process goes on with.
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_bf16_reduced_precision_reduction=True))
    assert pick_device("cuda:1") == torch.device("cuda:1")
    assert current == [torch.device("cuda:1")]
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is False
    # Without a number the current device stays.
    assert pick_device() == pick_device("cuda") == torch.device("cuda")
    assert len(current) == 1
    with pytest.raises(InputError, match=r"'cuda:2' is not available \(2 CUDA devices\)"):
        pick_device("cuda:2")
    assert len(current) == 1


@pytest.fixture
def rocm(monkeypatch: pytest.MonkeyPatch) -> DeviceProperties:
    """The GPU that PyTorch for ROCm shows, whose capability looks like that of an NVIDIA GPU."""
    properties = SimpleNamespace(name="MI300X", major=9, minor=4, total_memory=192 * 2**30, multi_processor_count=304)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "hip", "6.4.2")
    return device_properties._present_properties.__wrapped__(torch.device("cuda"))


def test_a_gpu_of_amd_is_no_cuda_card_and_said_to_be_untried(rocm: DeviceProperties) -> None:
    assert (rocm.kind, rocm.capability, rocm.shared_memory, rocm.memory) == ("rocm", None, 0, 192 * 2**30)
    assert rocm.has_own_memory
    said = untested_warning(rocm)
    assert said is not None
    assert said.startswith("MI300X is an AMD GPU (ROCm 6.4.2), on which helixfold has never been tested")
    assert not any(untested_warning(each) for each in DEVICE_MODELS.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_last_gpu_can_be_chosen() -> None:
    before, last = torch.cuda.current_device(), torch.cuda.device_count() - 1
    try:
        assert pick_device(f"cuda:{last}").index == torch.cuda.current_device() == last
        assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    finally:
        torch.cuda.set_device(before)
