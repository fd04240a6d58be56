"""Descriptions of devices, from which backends are chosen, for the device at hand or for one that is only described."""

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
    """Hardware properties of a device, a GPU or CPU."""

    name: str
    kind: str  # PyTorch's device type, but "rocm" for AMD's GPUs, which PyTorch calls "cuda" too
    capability: tuple[int, int] | None = None  # compute capability of an NVIDIA GPU
    shared_memory: int = 0  # the most bytes of shared memory that a thread block can have
    memory: int  # bytes
    multiprocessors: int  # cores on a CPU

    @property
    def has_own_memory(self) -> bool:
        """Return whether the device is a GPU with memory of its own, which other programs' memory is not part of."""
        return self.kind in ("cuda", "rocm")


def _gpu(
    name: str, capability: tuple[int, int], shared_kib: int, memory_gib: int, multiprocessors: int
) -> DeviceProperties:
    return DeviceProperties(
        name=name,
        kind="cuda",
        capability=capability,
        shared_memory=shared_kib * _KIB,
        memory=memory_gib * _GIB,
        multiprocessors=multiprocessors,
    )


# Shared memory is from the CUDA programming guide's table of compute capabilities. Memory is what the driver leaves of
# the nominal size, in whole GiB.
DEVICE_MODELS: Mapping[str, DeviceProperties] = MappingProxyType(
    {
        "cpu": DeviceProperties(name="CPU", kind="cpu", memory=16 * _GIB, multiprocessors=8),
        "t4": _gpu("NVIDIA T4", (7, 5), 64, 14, 40),
        "rtx3090": _gpu("NVIDIA GeForce RTX 3090", (8, 6), 99, 23, 82),
        "rtx4090": _gpu("NVIDIA GeForce RTX 4090", (8, 9), 99, 23, 128),
        "l4": _gpu("NVIDIA L4", (8, 9), 99, 22, 58),
        "a100": _gpu("NVIDIA A100 40GB", (8, 0), 163, 39, 108),
        "a100-80": _gpu("NVIDIA A100 80GB", (8, 0), 163, 79, 108),
        "h100": _gpu("NVIDIA H100", (9, 0), 227, 79, 132),
        "h200": _gpu("NVIDIA H200", (9, 0), 227, 139, 132),
    }
)

# A global for all threads, since autograd computes gradients and recomputes blocks in other threads.
_simulated: DeviceProperties | None = None


@contextmanager
def simulated_device(properties: DeviceProperties) -> Iterator[None]:
    """Choose backends and allocate memory as on this card while operators run on meta tensors, computing nothing.

    Inside, operators take meta tensors only, and loops over blocks run only their first steps.
    """
    global _simulated  # noqa: PLW0603 (one card for the process)
    earlier, _simulated = _simulated, properties
    try:
        yield
    finally:
        _simulated = earlier


def is_simulated() -> bool:
    """Return whether code runs inside `described`, on meta tensors."""
    return _simulated is not None


def properties_of(device: torch.device) -> DeviceProperties:
    """Return the described card inside `described`, else the properties of the device."""
    return _properties_at_hand(device) if _simulated is None else _simulated


@cache
def _properties_at_hand(device: torch.device) -> DeviceProperties:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, memory, multiprocessors = properties.name, properties.total_memory, properties.multi_processor_count
        if torch.version.hip is not None:
            # What PyTorch gives as its capability is a number of AMD's architecture, without the meaning of NVIDIA's.
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
