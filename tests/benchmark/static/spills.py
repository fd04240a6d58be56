"""Compile the kernels of an Evoformer block in bfloat16 for a compute capability, without a GPU.

    python -m tests.benchmark.static.spills 90

prints one line of JSON: for each kernel the bytes of a thread's stack, which is where values are that found no
register.
"""

import json
import sys
from functools import partial

import torch

from helixfold.benchmark.static.gpus import GPUS
from helixfold.benchmark.static.machine_code import spilled_bytes
from helixfold.benchmark.static.passes import BLOCK, BlockPasses, BlockSize
from helixfold.ops.triton.compiled import compiled_launches

SIZE = BlockSize(preset="model_1", residues=256, rows=128, dtype=torch.bfloat16)


def spilled(architecture: int) -> dict[str, int]:
    """Return the bytes of a thread's stack of every kernel, of the version of it that has most."""
    passes = BlockPasses(SIZE, GPUS[f"sm_{architecture}"].card, partial(compiled_launches, architecture))
    found: dict[str, int] = {}
    for kernel in dict.fromkeys(launch.kernel for each in passes.run([BLOCK]) for launch in each.launches):
        found[kernel.name] = max(found.get(kernel.name, 0), spilled_bytes(kernel))
    return found


if __name__ == "__main__":
    print(json.dumps(spilled(int(sys.argv[1]))))
