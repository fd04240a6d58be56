"""Versions of the software and the name of the device, as results record them."""

import importlib.metadata
import platform
import re
from functools import cache
from pathlib import Path

import numpy as np
import torch

import helixfold

# Files of Linux with the version of NVIDIA's driver and the name of the processor.
_DRIVER, _PROCESSOR = Path("/proc/driver/nvidia/version"), Path("/proc/cpuinfo")


@cache
def software_versions(device_type: str) -> dict[str, str]:
    """Return the versions of the software on which results depend, by name.

    On a GPU ("cuda") Triton, CUDA or ROCm, and NVIDIA's driver are included if their versions are available.
    """
    versions = {
        "helixfold": helixfold.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }
    if device_type == "cuda":
        gpu_versions = {
            "triton": package_version("triton"),
            "cuda": torch.version.cuda,
            "rocm": torch.version.hip,
            "driver": _driver_version(),
        }
        versions |= {name: version for name, version in gpu_versions.items() if version}
    return versions


def package_version(package: str) -> str | None:
    """Return the version of a Python package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def device_name(device: torch.device) -> str:
    """Return the product name of a GPU (cuda), else of the processor, or the platform's name for the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    lines = _PROCESSOR.read_text().splitlines() if _PROCESSOR.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def device_capability(device: torch.device) -> str:
    """Return an NVIDIA GPU's compute capability, such as 9.0, or the vector instructions that PyTorch uses on a CPU.

    Empty for other devices.
    """
    if device.type == "cuda" and torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(device)
        return f"{major}.{minor}"
    return torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else ""


def _driver_version() -> str | None:
    """Return the version of NVIDIA's driver on Linux; None elsewhere, where no file contains it."""
    text = _DRIVER.read_text() if _DRIVER.is_file() else ""
    match = re.search(r"Kernel Module .*?\b(\d{3,}(?:\.\d+)+)\b", text)
    return match[1] if match else None
