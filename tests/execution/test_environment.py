"""Versions and devices are described as results record them."""

from pathlib import Path

import pytest
import torch

import helixfold
from helixfold.execution import environment
from helixfold.execution.environment import device_capability, device_name, software_versions


@pytest.fixture(autouse=True)
def asked_anew() -> None:
    software_versions.cache_clear()
    device_name.cache_clear()


def test_a_cpu_has_no_driver_and_says_its_name_and_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    assert list(software_versions("cpu")) == ["helixfold", "python", "numpy", "torch"]
    assert software_versions("cpu")["helixfold"] == helixfold.__version__
    assert device_capability(cpu) == torch.backends.cpu.get_cpu_capability()
    processors = tmp_path / "cpuinfo"
    processors.write_text("processor\t: 0\nmodel name\t: A Processor: 5\n\nprocessor\t: 1\nmodel name\t: Another\n")
    monkeypatch.setattr(environment, "_PROCESSOR", processors)
    assert device_name(cpu) == "A Processor: 5"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build\nGCC: 12.3.0\n", "570.86"),
        ("GCC version: 535.1\n", None),
        (None, None),
    ],
)
def test_the_driver_of_a_gpu_is_read_where_linux_tells_it(
    text: str | None, version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "version"
    if text is not None:
        told.write_text(text)
    monkeypatch.setattr(environment, "_DRIVER", told)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    versions = software_versions("cuda")
    assert versions.get("driver") == version
    assert versions["cuda"] == "12.8"
    software_versions.cache_clear()
