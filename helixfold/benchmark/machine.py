"""Describe the machine of a benchmark, and measure its best rates: products of matrices, and copies of memory."""

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from helixfold.benchmark.timing import median_seconds
from helixfold.execution import allocator
from helixfold.execution.environment import device_name, package_version
from helixfold.ops.cpu.products import mapped
from helixfold.planning.size import dtype_name

_SHOWN = ("torch", "triton", "trifast", "cuequivariance_torch", "numpy")
# A large product that would take longer on a CPU is not measured.
_MOST_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class BenchmarkDevice:
    """A device with its best rates: FLOPs per second of a product by dtype, and bytes read and written per second."""

    device: torch.device
    name: str
    threads: int
    versions: dict[str, str]
    load: float  # mean number of running processes in the minute before
    allocator: str
    product: dict[torch.dtype, float] = field(default_factory=dict)
    copy: float = 1.0

    def lines(self) -> list[str]:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        rates = ", ".join(
            f"{rate / 1e9:,.0f} GFLOP/s in products of {dtype_name(dtype)}" for dtype, rate in self.product.items()
        )
        return [
            f"{self.name} ({self.device}), {self.threads} threads, load average {self.load:.2f}",
            f"{platform.system()}, {versions}; {self.allocator}",
            f"at best {rates}, {self.copy / 1e9:,.1f} GB/s read and written in copies",
        ]

    def to_dict(self) -> dict[str, object]:
        """Return the machine as a dict for JSON."""
        return {
            "device": str(self.device),
            "name": self.name,
            "threads": self.threads,
            "versions": self.versions,
            "load": self.load,
            "allocator": self.allocator,
            "product_flops": {dtype_name(dtype): rate for dtype, rate in self.product.items()},
            "copy_bytes": self.copy,
        }


def measured_device(device: torch.device, dtypes: Sequence[torch.dtype], repeats: int) -> BenchmarkDevice:
    """Return a device with its rates measured; `repeats` is the number of readings for each."""
    refused = allocator.refusal()
    return BenchmarkDevice(
        device=device,
        name=device_name(device),
        threads=torch.get_num_threads(),
        versions={"Python": platform.python_version()}
        | {name: version for name in _SHOWN if (version := package_version(name)) is not None},
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        allocator="freed memory is kept" if refused is None else f"allocator as it is: {refused}",
        product={dtype: product_rate(device, dtype, repeats) for dtype in dtypes},
        copy=copy_rate(device, repeats),
    )


def product_rate(device: torch.device, dtype: torch.dtype, repeats: int) -> float:
    """Return the FLOPs per second of a large matrix product.

    On a CPU, the faster of PyTorch's two libraries counts, and the product is small where a large one takes minutes,
    as in bfloat16 on processors without instructions for it.
    """
    rate = math.inf
    for size in (8192,) if device.type == "cuda" else (256, 2048):
        if 2 * size**3 / rate > _MOST_SECONDS:
            break
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        ways = [partial(torch.matmul, a, b), partial(mapped, a, b)][: 2 if device.type == "cpu" else 1]
        rate = 2 * size**3 / min(median_seconds(way, device, repeats) for way in ways)
    return rate


def copy_rate(device: torch.device, repeats: int) -> float:
    """Return the bytes read and written per second by a copy that is too large for the caches."""
    source = torch.ones(2**28 if device.type == "cuda" else 2**25, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_seconds(lambda: target.copy_(source), device, repeats)
