"""The dtype that suits a device."""

import pytest
import torch

from helixfold.execution.device import AUTO, DTYPES, cast_trunk, common_dtype, dtype_on, settled_dtype
from helixfold.model.alphafold import AlphaFold
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties
from tests.support.networks import tiny_config

ROCM = DeviceProperties(name="AMD Instinct MI300X", kind="rocm", memory=2**30, multiprocessors=304)
MPS = DeviceProperties(name="mps", kind="mps", memory=2**30, multiprocessors=8)


@pytest.mark.parametrize("properties", [*DEVICE_MODELS.values(), ROCM, MPS], ids=lambda properties: properties.name)
def test_auto_is_bfloat16_on_nvidia_gpus_that_multiply_it(properties: DeviceProperties) -> None:
    has_bfloat16 = properties.name not in ("CPU", "NVIDIA T4", "NVIDIA V100 16GB", ROCM.name, MPS.name)
    assert settled_dtype(AUTO, properties) == ("bfloat16" if has_bfloat16 else "float32")
    assert dtype_on(AUTO, properties) == DTYPES[settled_dtype(AUTO, properties)]


def test_a_dtype_that_is_asked_for_is_taken_on_every_device() -> None:
    assert {settled_dtype("float32", properties) for properties in DEVICE_MODELS.values()} == {"float32"}
    assert {settled_dtype("bfloat16", properties) for properties in DEVICE_MODELS.values()} == {"bfloat16"}


def test_different_devices_compute_alike() -> None:
    assert common_dtype(["bfloat16", "bfloat16"]) == "bfloat16"
    assert common_dtype(["bfloat16", "float32"]) == "float32"


def test_parameters_of_the_trunk_are_cast_once_on_a_gpu_and_never_on_a_cpu() -> None:
    with torch.device("meta"):
        network = AlphaFold(tiny_config())
    cast_trunk(network, torch.bfloat16)
    for name, parameter in network.named_parameters():
        in_float32 = name.split(".")[0] in ("structure_module", "heads")
        assert parameter.dtype == (torch.float32 if in_float32 else torch.bfloat16), name
    assert {buffer.dtype for buffer in network.buffers() if buffer.is_floating_point()} <= {torch.float32}
    on_cpu = AlphaFold(tiny_config())
    cast_trunk(on_cpu, torch.bfloat16)
    assert {parameter.dtype for parameter in on_cpu.parameters()} == {torch.float32}
