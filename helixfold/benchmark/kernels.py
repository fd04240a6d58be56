"""Compile the network's kernels without a GPU, for `helixfold benchmark kernels --static`."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from data_pipeline.io.errors import InputError, printable
from data_pipeline.search.process import run_program
from helixfold.benchmark.measurement import write_json
from helixfold.benchmark.op_cases import Shape
from helixfold.benchmark.options import KernelsOptions
from helixfold.benchmark.passes import ARCHITECTURES, BLOCK, NAMES, Pass, passes, shape_of
from helixfold.planning.size import dtype_name

if TYPE_CHECKING:
    from helixfold.ops.triton.compiled import CompiledKernel


def run(options: KernelsOptions) -> None:
    """Compile the kernels of training, and print their registers, spills and the bytes of their tensors.

    The kernels are from parts of the network whose name contains `--only`, for each of `--arch`. With `--json`, the
    tables are also written to a file. Raise `InputError` without `--static`, without Triton, if Triton's interpreter is
    on, or if no part matches.
    """
    if not options.static:
        raise InputError(
            "kernels are compiled and counted, not timed: pass --static, or measure on a GPU with "
            "`helixfold benchmark ops --device cuda`"
        )
    if find_spec("triton") is None:
        raise InputError("kernels are compiled by Triton, which is not installed: pip install triton")
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise InputError("kernels are interpreted, not compiled, because TRITON_INTERPRET is set: unset it")
    _show(shape_of(options, getattr(torch, options.dtype)), options.arch, options.only, options.json)


# A line of machine code: its address, a predicate if there is one, and the instruction's name with its modifiers.
_INSTRUCTION_PATTERN = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
_RESOURCES_PATTERN = re.compile(r"REG:(\d+) STACK:(\d+)")
# Names of matrix instructions of a warp (before Hopper, and on consumer Blackwell), of a group of four warps (Hopper),
# and of the tensor memory (data centre Blackwell).
_MATRIX_INSTRUCTION_PATTERN = re.compile(r"(?:HMMA|IMMA|DMMA|QMMA|OMMA|HGMMA|QGMMA|UTC\w*MMA)\b")
# Time limit of a run of NVIDIA's tools in seconds, and maximum size of the listing of a kernel.
_TOOL_TIMEOUT = 120.0
_MAX_LISTING_BYTES = 2**26


@dataclass(frozen=True, kw_only=True)
class MachineCode:
    """Facts about a kernel's machine code.

    `registers` is the number of registers per thread, and `spilled` the bytes of its stack per thread. `spills` is the
    number of instructions that read or write spilled values, `instructions` the number of all instructions, and
    `matrix` the number of matrix instructions by kind.
    """

    registers: int
    spilled: int
    spills: int
    instructions: int
    matrix: Mapping[str, int]


def machine_code(kernel: "CompiledKernel") -> MachineCode:
    """Disassemble a kernel with NVIDIA's tools and return facts about its machine code."""
    with TemporaryDirectory() as folder:
        path = _write_cubin(kernel, Path(folder))
        registers, spilled = _resources(path)
        command = (_tool("nvdisasm"), "-c", path)
        result = run_program(command, timeout=_TOOL_TIMEOUT, directory=path.parent, kept_bytes=_MAX_LISTING_BYTES)
    names = Counter(_INSTRUCTION_PATTERN.findall(result.stdout.decode()))
    matrix = Counter[str]()
    for name, count in names.items():
        if _MATRIX_INSTRUCTION_PATTERN.match(name):
            matrix[name.partition(".")[0]] += count
    spills = sum(count for name, count in names.items() if name.startswith(("LDL", "STL")))
    return MachineCode(
        registers=registers, spilled=spilled, spills=spills, instructions=names.total(), matrix=dict(matrix)
    )


def _tool(name: str) -> Path:
    from helixfold.ops.triton.compiled import TOOLS  # noqa: PLC0415 (needs Triton, and help pages do not)

    return TOOLS / name


def _write_cubin(kernel: "CompiledKernel", folder: Path) -> Path:
    path = folder / "kernel.cubin"
    path.write_bytes(kernel.cubin)
    return path


def _resources(path: Path) -> tuple[int, int]:
    """Return the number of registers and the bytes of stack of a thread."""
    command = (_tool("cuobjdump"), "--dump-resource-usage", path)
    result = run_program(command, timeout=_TOOL_TIMEOUT, directory=path.parent)
    match = _RESOURCES_PATTERN.search(result.stdout.decode())
    if match is None:
        raise ValueError(f"cuobjdump did not print the number of registers: {result.stdout.decode()!r}")
    return int(match[1]), int(match[2])


_KERNEL_HEADER = (
    f"  {'kernel':36} {'launches':>8} {'registers':>9} {'spills':>6} {'shared KiB':>10} {'warps':>5} "
    f"{'matrix':>16} {'MB moved':>8}"
)
_SUMMARY_HEADER = (
    f"{'':22} {'':8} {'kernels':>7} {'others':>6} {'MB moved':>8} {'floor':>7} {'ratio':>6} {'kept':>7} {'of both':>7}"
)
_code = cache(machine_code)


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """A row of the table: one kernel in the forward or backward pass of a part of the network.

    `code` has the facts about its machine code. `shared_memory` is in bytes, and `warps` the number of warps, both per
    thread block. `moved` is the number of bytes of the tensors that are passed to all its launches.
    """

    kernel: str
    launches: int
    code: MachineCode
    shared_memory: int
    warps: int
    moved: int

    def line(self) -> str:
        """Return the row as text, with shared memory in KiB and moved bytes in megabytes."""
        matrix = ", ".join(f"{count} {kind}" for kind, count in self.code.matrix.items())
        return (
            f"  {self.kernel:36} {self.launches:8} {self.code.registers:9} {self.code.spills:6} "
            f"{self.shared_memory / 1024:10.1f} {self.warps:5} {matrix or '-':>16} {self.moved / 1e6:8.1f}"
        )


@dataclass(frozen=True, kw_only=True)
class PassRow:
    """The forward or backward pass of a part: its kernels, and the counts of PyTorch's operators by name.

    `operators_moved` is the number of bytes of the tensors of these operators. `floor` is the minimum number of bytes
    that the pass must move. `kept` is the number of bytes that the forward pass saves for the backward pass.
    """

    name: str
    backward: bool
    kernels: list[KernelRow]
    operators: dict[str, int]
    operators_moved: int
    floor: int
    kept: int

    @property
    def moved(self) -> int:
        """The number of bytes of the tensors of all launches, of kernels and PyTorch's operators."""
        return sum(row.moved for row in self.kernels) + self.operators_moved

    def lines(self) -> Iterator[str]:
        """Yield a title, a row for each kernel, and a row and the names of PyTorch's operators, as text."""
        yield f"{self.name}, {self.direction}"
        yield from (row.line() for row in self.kernels)
        if self.operators:
            names = ", ".join(f"{count} {name}" for name, count in self.operators.items())
            name = f"PyTorch's ({len(self.operators)} kinds)"
            yield f"  {name:36} {sum(self.operators.values()):8} {'':50} {self.operators_moved / 1e6:8.1f}"
            yield f"    {names}"

    def sum_line(self) -> str:
        """Return the pass's row of the summary as text: counts of launches, megabytes moved, ratios to the floor."""
        launches = sum(row.launches for row in self.kernels)
        return (
            f"{self.name:22} {self.direction:8} {launches:7} {sum(self.operators.values()):6} {self.moved / 1e6:8.1f} "
            f"{self.floor / 1e6:7.1f} {self.moved / self.floor:6.2f} {self.kept / 1e6:7.1f} "
            f"{self.moved / (self.floor + self.kept):7.2f}"
        )

    @property
    def direction(self) -> str:
        """The word "forward" or "backward"."""
        return "backward" if self.backward else "forward"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and the moved bytes as a dict for JSON."""
        return asdict(self) | {"moved": self.moved}


def _show(sizes: Shape, architectures: Sequence[str], only: str, path: Path | None) -> None:
    """Print the tables of the parts whose name contains `only`, for each architecture.

    With a path, also write them there as JSON. Raise `InputError` if no part matches.
    """
    from helixfold.ops.triton.compiled import compiled_launches  # noqa: PLC0415 (needs Triton)

    names = [name for name in NAMES if only in name]
    if not names:
        raise InputError(f"no part's name contains {printable(only)!r}; they are {', '.join(NAMES)}")
    tables = []
    for architecture in architectures:
        properties = ARCHITECTURES[architecture]
        unsupported: dict[str, str] = {}
        compiled = partial(compiled_launches, int(architecture.removeprefix("sm_")))
        print(
            f"{architecture} ({properties.name}): {sizes.preset}, {sizes.residues} residues, "
            f"{sizes.rows} + {sizes.extra_rows} rows, {dtype_name(sizes.dtype)}, in training"
        )
        print(_KERNEL_HEADER)
        rows = []
        for each in passes(sizes, names, properties, compiled, unsupported):
            rows.append(_pass_row(each))
            if each.name != BLOCK:
                print("\n".join(rows[-1].lines()), flush=True)
        for operator, reason in unsupported.items():
            print(f"helixfold has no kernel for {operator}: {reason}")
        print(f"\n{_SUMMARY_HEADER}")
        print("\n".join(row.sum_line() for row in rows))
        block = [row for row in rows if row.name == BLOCK]
        if block:
            moved, floor = sum(row.moved for row in block), sum(row.floor for row in block)
            with_kept = floor + sum(row.kept for row in block)
            print(
                f"the block forward and backward: {moved / floor:.2f} times the floor moved, "
                f"{moved / with_kept:.2f} times the floor with saved tensors"
            )
        print()
        tables.append({"arch": architecture, "refusals": unsupported, "passes": [row.to_dict() for row in rows]})
    write_json(path, tables)


def _pass_row(counted_pass: Pass) -> PassRow:
    moved: Counter[CompiledKernel] = Counter()
    for kernel, call in zip(counted_pass.kernels, (call for call in counted_pass.calls if call.is_kernel), strict=True):
        moved[kernel] += call.moved
    launches = Counter(counted_pass.kernels)
    operators = [call for call in counted_pass.calls if not call.is_kernel]
    return PassRow(
        name=counted_pass.name,
        backward=counted_pass.backward,
        kernels=[
            KernelRow(
                kernel=kernel.name,
                launches=launches[kernel],
                code=_code(kernel),
                shared_memory=kernel.shared_memory,
                warps=kernel.warps,
                moved=moved[kernel],
            )
            for kernel in launches
        ],
        operators=dict(Counter(call.name for call in operators).most_common()),
        operators_moved=sum(call.moved for call in operators),
        floor=counted_pass.floor,
        kept=counted_pass.kept,
    )
