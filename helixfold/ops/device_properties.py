"""Hardware properties of devices, present or simulated, from which operators choose their backends."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import torch

from data_pipeline.io.processors import available_processors

_KIB, _GIB = 2**10, 2**30


@dataclass(frozen=True, kw_only=True)
class DeviceProperties:
    """Hardware properties of a device, a GPU or CPU.

    `kind` is PyTorch's type of the device, or "rocm" for an AMD GPU. `capability` is the compute capability of an
    NVIDIA GPU, else None. `shared_memory` is the maximum bytes per thread block, `memory` the total bytes of the
    device. `multiprocessors` of a CPU are the processors that this process may use.
    """

    name: str
    kind: str  # PyTorch's device type, except that AMD GPUs are "rocm" (PyTorch calls them "cuda")
    capability: tuple[int, int] | None = None  # compute capability of an NVIDIA GPU
    shared_memory: int = 0  # maximum bytes of shared memory per thread block
    memory: int  # bytes in total, not only the free ones
    multiprocessors: int  # of a GPU; on a CPU, the processors that this process may use

    @property
    def has_own_memory(self) -> bool:
        """Return whether the device is a GPU with its own memory, separate from the host's."""
        return self.kind in ("cuda", "rocm")


def _gpu(
    name: str, capability: tuple[int, int], shared_kib: int, memory_gib: int, multiprocessors: int
) -> DeviceProperties:
    """Return the properties of an NVIDIA GPU, with shared memory per thread block in KiB and memory in GiB."""
    return DeviceProperties(
        name=name,
        kind="cuda",
        capability=capability,
        shared_memory=shared_kib * _KIB,
        memory=memory_gib * _GIB,
        multiprocessors=multiprocessors,
    )


# Properties of common devices, which can be simulated, by short name. Shared memory is from the table of compute
# capabilities in the CUDA programming guide. Memory is the nominal size minus the memory that the driver takes, in
# whole GiB.
DEVICE_MODELS: Mapping[str, DeviceProperties] = MappingProxyType(
    {
        "cpu": DeviceProperties(name="CPU", kind="cpu", memory=16 * _GIB, multiprocessors=8),
        "t4": _gpu("NVIDIA T4", (7, 5), 64, 14, 40),
        "v100": _gpu("NVIDIA V100 16GB", (7, 0), 96, 15, 80),
        "rtx3090": _gpu("NVIDIA GeForce RTX 3090", (8, 6), 99, 23, 82),
        "rtx4090": _gpu("NVIDIA GeForce RTX 4090", (8, 9), 99, 23, 128),
        "l4": _gpu("NVIDIA L4", (8, 9), 99, 22, 58),
        "a100": _gpu("NVIDIA A100 40GB", (8, 0), 163, 39, 108),
        "a100-80": _gpu("NVIDIA A100 80GB", (8, 0), 163, 79, 108),
        "h100": _gpu("NVIDIA H100", (9, 0), 227, 79, 132),
        "h200": _gpu("NVIDIA H200", (9, 0), 227, 139, 132),
    }
)

# A global for all threads, because autograd computes gradients and recomputes blocks in other threads.
_simulated: DeviceProperties | None = None


@contextmanager
def simulated_device(properties: DeviceProperties) -> Iterator[None]:
    """Run operators on meta tensors, with the backends and allocations of this device and without computing anything.

    Inside, operators accept only meta tensors, and loops over blocks run only their first two steps.
    """
    global _simulated  # noqa: PLW0603 (one device for the process)
    earlier, _simulated = _simulated, properties
    try:
        yield
    finally:
        _simulated = earlier


def is_simulated() -> bool:
    """Return whether code runs inside `simulated_device`, on meta tensors."""
    return _simulated is not None


def properties_of(device: torch.device) -> DeviceProperties:
    """Return the properties of the device, or inside `simulated_device` of the simulated device."""
    return _present_properties(device) if _simulated is None else _simulated


@cache
def _present_properties(device: torch.device) -> DeviceProperties:
    """Return the properties of a device of this machine."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, memory, multiprocessors = properties.name, properties.total_memory, properties.multi_processor_count
        if torch.version.hip is not None:
            # For AMD GPUs, PyTorch reports the version of the architecture as capability; it is not comparable.
            return DeviceProperties(name=name, kind="rocm", memory=memory, multiprocessors=multiprocessors)
        return DeviceProperties(
            name=name,
            kind="cuda",
            capability=(properties.major, properties.minor),
            shared_memory=properties.shared_memory_per_block_optin,  # type: ignore[attr-defined]
            memory=memory,
            multiprocessors=multiprocessors,
        )
    return DeviceProperties(
        name=device.type,
        kind=device.type,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        multiprocessors=available_processors(),
    )
