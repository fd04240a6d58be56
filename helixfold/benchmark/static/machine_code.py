"""Read from a compiled kernel's machine code what limits its speed: registers, spills and matrix instructions."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from data_pipeline.search.process import run_program
from helixfold.ops.triton.compiled import TOOLS, CompiledKernel

# A line of machine code: its address, a predicate if there is one, and the instruction's name with its modifiers.
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")
# Names of the instructions that multiply matrices: those of a warp (before Hopper, and on consumer Blackwell), of a
# group of four warps (Hopper), and of the tensor memory (data centre Blackwell).
_MATRIX = re.compile(r"(?:HMMA|IMMA|DMMA|QMMA|OMMA|HGMMA|QGMMA|UTC\w*MMA)\b")
_SECONDS = 120.0
_LISTING_BYTES = 2**26


@dataclass(frozen=True, kw_only=True)
class MachineCode:
    """Facts about a kernel's machine code.

    `registers` and `spilled` (bytes of its stack) are those of a thread, `spills` the number of instructions that read
    or write spilled values, `instructions` that of all, and `matrix` the number of matrix instructions by kind.
    """

    registers: int
    spilled: int
    spills: int
    instructions: int
    matrix: Mapping[str, int]


def spilled_bytes(kernel: CompiledKernel) -> int:
    """Return the bytes of a thread's stack, which is where values are that have no register."""
    with TemporaryDirectory() as folder:
        return _resources(_written(kernel, Path(folder)))[1]


def machine_code(kernel: CompiledKernel) -> MachineCode:
    """Return what NVIDIA's disassembler finds in a kernel."""
    with TemporaryDirectory() as folder:
        path = _written(kernel, Path(folder))
        registers, spilled = _resources(path)
        command = (TOOLS / "nvdisasm", "-c", path)
        done = run_program(command, timeout=_SECONDS, directory=path.parent, kept_bytes=_LISTING_BYTES)
    names = Counter(_INSTRUCTION.findall(done.stdout.decode()))
    matrix = Counter[str]()
    for name, count in names.items():
        if _MATRIX.match(name):
            matrix[name.partition(".")[0]] += count
    spills = sum(count for name, count in names.items() if name.startswith(("LDL", "STL")))
    return MachineCode(
        registers=registers, spilled=spilled, spills=spills, instructions=names.total(), matrix=dict(matrix)
    )


def _written(kernel: CompiledKernel, folder: Path) -> Path:
    path = folder / "kernel.cubin"
    path.write_bytes(kernel.cubin)
    return path


def _resources(path: Path) -> tuple[int, int]:
    """Return the registers and the bytes of stack of a thread."""
    command = (TOOLS / "cuobjdump", "--dump-resource-usage", path)
    done = run_program(command, timeout=_SECONDS, directory=path.parent)
    found = _RESOURCES.search(done.stdout.decode())
    if found is None:
        raise ValueError(f"cuobjdump says nothing of registers: {done.stdout.decode()!r}")
    return int(found[1]), int(found[2])
