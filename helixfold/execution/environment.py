"""Describe the programs and the device that compute, as results record them: nothing here changes from run to run."""

import importlib.metadata
import platform
import re
from functools import cache
from pathlib import Path

import numpy as np
import torch

import helixfold

_DRIVER, _PROCESSOR = Path("/proc/driver/nvidia/version"), Path("/proc/cpuinfo")


@cache
def software_versions(device_type: str) -> dict[str, str]:
    """Return the versions of the programs on which results depend, by name.

    On a GPU ("cuda") these are also Triton, CUDA or ROCm, and NVIDIA's driver, as far as they can be found out.
    """
    versions = {
        "helixfold": helixfold.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }
    if device_type == "cuda":
        found = {
            "triton": package_version("triton"),
            "cuda": torch.version.cuda,
            "rocm": torch.version.hip,
            "driver": _driver_version(),
        }
        versions |= {name: version for name, version in found.items() if version}
    return versions


def package_version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def device_name(device: torch.device) -> str:
    """Return the name that the device's maker gives it, or else the platform's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    lines = _PROCESSOR.read_text().splitlines() if _PROCESSOR.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def device_capability(device: torch.device) -> str:
    """Return the compute capability of an NVIDIA GPU, such as 9.0, or the vector instructions that a CPU is used with.

    For other devices it is empty.
    """
    if device.type == "cuda" and torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(device)
        return f"{major}.{minor}"
    return torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else ""


def _driver_version() -> str | None:
    """Return the version of NVIDIA's driver on Linux; None elsewhere, where nothing but its own programs tells it."""
    text = _DRIVER.read_text() if _DRIVER.is_file() else ""
    found = re.search(r"Kernel Module .*?\b(\d{3,}(?:\.\d+)+)\b", text)
    return found[1] if found else None
