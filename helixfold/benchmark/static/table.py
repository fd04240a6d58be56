"""Print the table of `helixfold benchmark kernels --static`, and write it as JSON."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from data_pipeline.errors import InputError, printable
from helixfold.benchmark.static.machine_code import MachineCode, machine_code
from helixfold.benchmark.static.network_parts import PassSizes
from helixfold.benchmark.static.passes import ARCHITECTURES, BLOCK, NAMES, Pass, Recorder, passes
from helixfold.ops.triton.compiled import CompiledKernel, compiled_launches
from helixfold.planning.size import dtype_name

_HEADER = (
    f"  {'kernel':36} {'launches':>8} {'registers':>9} {'spills':>6} {'shared KiB':>10} {'warps':>5} "
    f"{'matrix':>16} {'MB moved':>8}"
)
_SUM_HEADER = (
    f"{'':22} {'':8} {'kernels':>7} {'others':>6} {'MB moved':>8} {'floor':>7} {'ratio':>6} {'kept':>7} {'of both':>7}"
)
_code = cache(machine_code)


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """One distinct kernel in a pass of a part; `moved` is the bytes of the tensors that all its launches are given."""

    kernel: str
    launches: int
    code: MachineCode
    shared_memory: int
    warps: int
    moved: int

    def line(self) -> str:
        matrix = ", ".join(f"{count} {kind}" for kind, count in self.code.matrix.items())
        return (
            f"  {self.kernel:36} {self.launches:8} {self.code.registers:9} {self.code.spills:6} "
            f"{self.shared_memory / 1024:10.1f} {self.warps:5} {matrix or '-':>16} {self.moved / 1e6:8.1f}"
        )


@dataclass(frozen=True, kw_only=True)
class PassRow:
    """A pass of a part: its kernels, and the other operators by name."""

    name: str
    backward: bool
    kernels: list[KernelRow]
    operators: dict[str, int]
    operators_moved: int
    floor: int
    kept: int

    @property
    def moved(self) -> int:
        return sum(row.moved for row in self.kernels) + self.operators_moved

    def lines(self) -> Iterator[str]:
        yield f"{self.name}, {self.direction}"
        yield from (row.line() for row in self.kernels)
        if self.operators:
            names = ", ".join(f"{count} {name}" for name, count in self.operators.items())
            name = f"PyTorch's ({len(self.operators)} kinds)"
            yield f"  {name:36} {sum(self.operators.values()):8} {'':50} {self.operators_moved / 1e6:8.1f}"
            yield f"    {names}"

    def sum_line(self) -> str:
        launches = sum(row.launches for row in self.kernels)
        return (
            f"{self.name:22} {self.direction:8} {launches:7} {sum(self.operators.values()):6} {self.moved / 1e6:8.1f} "
            f"{self.floor / 1e6:7.1f} {self.moved / self.floor:6.2f} {self.kept / 1e6:7.1f} "
            f"{self.moved / (self.floor + self.kept):7.2f}"
        )

    @property
    def direction(self) -> str:
        return "backward" if self.backward else "forward"

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a dict for JSON."""
        return asdict(self) | {"moved": self.moved}


def show(sizes: PassSizes, architectures: Sequence[str], only: str, path: Path | None) -> None:
    """Print the tables of all parts for each architecture; with a path, also write them there as JSON.

    Show the parts whose name contains `only`. Raise `InputError` if there are none.
    """
    names = [name for name in NAMES if only in name]
    if not names:
        raise InputError(f"no part's name contains {printable(only)!r}; they are {', '.join(NAMES)}")
    tables = []
    for architecture in architectures:
        card = ARCHITECTURES[architecture]
        recorder = Recorder(card=card, compiled=partial(compiled_launches, int(architecture.removeprefix("sm_"))))
        print(
            f"{architecture} ({card.name}): {sizes.preset}, {sizes.residues} residues, "
            f"{sizes.rows} + {sizes.extra_rows} rows, {dtype_name(sizes.dtype)}, in training"
        )
        print(_HEADER)
        rows = []
        for each in passes(sizes, names, recorder):
            rows.append(_pass_row(each))
            if each.name != BLOCK:
                print("\n".join(rows[-1].lines()), flush=True)
        for operator, reason in recorder.refusals.items():
            print(f"no kernel of ours computes {operator}: {reason}")
        print(f"\n{_SUM_HEADER}")
        print("\n".join(row.sum_line() for row in rows))
        block = [row for row in rows if row.name == BLOCK]
        if block:
            moved, floor = sum(row.moved for row in block), sum(row.floor for row in block)
            with_kept = floor + sum(row.kept for row in block)
            print(
                f"the block forward and backward: {moved / floor:.2f} times the floor moved, "
                f"{moved / with_kept:.2f} with what is kept"
            )
        print()
        tables.append({"arch": architecture, "refusals": recorder.refusals, "passes": [row.to_dict() for row in rows]})
    if path is not None:
        path.write_text(json.dumps(tables, indent=1) + "\n")


def _pass_row(one: Pass) -> PassRow:
    moved = Counter[CompiledKernel]()
    for kernel, call in zip(one.kernels, (call for call in one.calls if call.is_kernel), strict=True):
        moved[kernel] += call.moved
    launches = Counter(one.kernels)
    operators = [call for call in one.calls if not call.is_kernel]
    return PassRow(
        name=one.name,
        backward=one.backward,
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
        floor=one.floor,
        kept=one.kept,
    )
