"""Compile the network's kernels in bfloat16 for a compute capability, without a GPU.

    python -m tests.benchmark.spills 90 "structure module"

prints one line of JSON: for each kernel the bytes of a thread's stack, which is where values are that found no
register.
"""

import json
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from helixfold.benchmark import kernels
from helixfold.benchmark.op_cases import Shape
from helixfold.benchmark.passes import ARCHITECTURES, passes
from helixfold.ops.triton.compiled import CompiledKernel, compiled_launches

SIZES = Shape(preset="model_1", residues=256, rows=128, extra_rows=1024, dtype=torch.bfloat16)


def spilled(architecture: int, names: list[str]) -> dict[str, int]:
    """Return the bytes of a thread's stack of every kernel of these parts, of the version of it that has most."""
    properties, compiled = ARCHITECTURES[f"sm_{architecture}"], partial(compiled_launches, architecture)
    found: dict[str, int] = {}
    for kernel in dict.fromkeys(
        kernel for each in passes(SIZES, names, properties, compiled, {}) for kernel in each.kernels
    ):
        found[kernel.name] = max(found.get(kernel.name, 0), spilled_bytes(kernel))
    return found


def spilled_bytes(kernel: CompiledKernel) -> int:
    """Return the bytes of a thread's stack, without the listing of instructions, which takes long to make."""
    with TemporaryDirectory() as folder:
        return kernels._resources(kernels._write_cubin(kernel, Path(folder)))[1]


if __name__ == "__main__":
    print(json.dumps(spilled(int(sys.argv[1]), sys.argv[2:])))
