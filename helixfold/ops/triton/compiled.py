"""Compile Triton kernels for any compute capability without a GPU, by launching them on meta tensors."""

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

# Folder of NVIDIA's programs that read machine code, which are part of Triton.
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True, eq=False)
class CompiledKernel:
    """A kernel compiled for one compute capability and one specialisation of its arguments.

    `cubin` is the machine code. `shared_memory` is in bytes per thread block of `warps` warps.
    """

    name: str  # module and function, such as "transition.forward"
    cubin: bytes
    warps: int
    shared_memory: int


@contextmanager
def compiled_launches(capability: int) -> Iterator[list[CompiledKernel]]:
    """Record compiled kernels: yield a list to which the kernel of every launch on meta tensors is appended.

    Kernels are compiled for a compute capability such as 90 (9.0). Raise `RuntimeError` if Triton was imported with
    TRITON_INTERPRET, which disables compilation.
    """
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise RuntimeError("kernels cannot be compiled because TRITON_INTERPRET is set; unset it")
    launched: list[CompiledKernel] = []

    def compile_(kernel: Kernel, grid: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compile the kernel of a launch without running it, and append it to the list."""
        compiled = kernel.jitted.run(*args, grid=grid, warmup=True, **kwargs)
        if compiled not in _compiled_kernels:
            _compiled_kernels[compiled] = CompiledKernel(
                name=f"{kernel.jitted.fn.__module__.rpartition('.')[2]}.{kernel.name.lstrip('_')}",
                cubin=compiled.asm["cubin"],
                warps=compiled.metadata.num_warps,
                shared_memory=compiled.metadata.shared,
            )
        launched.append(_compiled_kernels[compiled])

    driver.set_active(_Driver(capability))
    try:
        with watched(compile_):
            yield launched
    finally:
        if torch.cuda.is_available():
            driver.reset_active()


# Kernels compiled in this process, by the object that Triton returns for every launch of the same code.
_compiled_kernels: dict[Any, CompiledKernel] = {}


class _Driver:
    """A Triton driver without a GPU, sufficient for compilation."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        # Triton caches compiled kernels by device, so each capability is a separate device.
        return self._capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def is_active(self) -> bool:
        return True
