"""Compile the kernels that are launched on meta tensors for any compute capability, on a machine without a GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from helixfold.ops.triton.language import Kernel, watched

# NVIDIA's programs that read machine code, which come with Triton.
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True, eq=False)
class CompiledKernel:
    """A kernel as compiled for one compute capability and one specialisation of its arguments.

    `cubin` is the machine code. `shared_memory` is in bytes for each thread block of `warps` warps.
    """

    name: str  # module and function, such as "transition.forward"
    cubin: bytes
    warps: int
    shared_memory: int


@contextmanager
def compiled_launches(capability: int) -> Iterator[list[CompiledKernel]]:
    """Yield a list to which the kernel of every launch on meta tensors is appended.

    Kernels are compiled for a capability such as 90 (9.0). Raise `RuntimeError` where Triton was imported with
    TRITON_INTERPRET, since kernels are then not compiled.
    """
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise RuntimeError("kernels are interpreted where TRITON_INTERPRET is set; unset it to compile them")
    launched: list[CompiledKernel] = []

    def compile_(kernel: Kernel, grid: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        compiled = kernel.jitted.run(*args, grid=grid, warmup=True, **kwargs)
        if compiled not in _known:
            _known[compiled] = CompiledKernel(
                name=f"{kernel.jitted.fn.__module__.rpartition('.')[2]}.{kernel.name.lstrip('_')}",
                cubin=compiled.asm["cubin"],
                warps=compiled.metadata.num_warps,
                shared_memory=compiled.metadata.shared,
            )
        launched.append(_known[compiled])

    driver.set_active(_Driver(capability))
    try:
        with watched(compile_):
            yield launched
    finally:
        if torch.cuda.is_available():
            driver.reset_active()


# What was compiled in this process, by the object that Triton returns for every launch of the same code.
_known: dict[Any, CompiledKernel] = {}


class _Driver:
    """A driver without a GPU behind it: enough to compile for one."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        # Triton keeps what it compiled by device, so every capability is a device.
        return self._capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def is_active(self) -> bool:
        return True
