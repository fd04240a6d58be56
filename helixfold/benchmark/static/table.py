"""Print the table of `helixfold benchmark kernels --static`, and write it as JSON."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from data_pipeline.errors import InputError, error_reason, printable
from helixfold.benchmark.static.gpus import GPUS, Gpu, estimated_seconds, operator_seconds
from helixfold.benchmark.static.machine_code import MachineCode, machine_code
from helixfold.benchmark.static.network_parts import PassSizes
from helixfold.benchmark.static.passes import BLOCK, NAMES, Pass, Recorder, passes
from helixfold.benchmark.static.traffic import Work, given_bytes, launch_work, moved_bytes
from helixfold.benchmark.static.ttir import NotFollowedError
from helixfold.ops.triton.compiled import CompiledKernel, Launch, compiled_launches
from helixfold.planning.size import dtype_name

NOTE = (
    "Times are estimates by the formula of helixfold.benchmark.static.gpus. An H100 took longer than they say: only\n"
    "ratios between two versions of the code count."
)
_HEADER = (
    f"  {'kernel':36} {'launches':>8} {'registers':>9} {'spills':>6} {'shared KiB':>10} {'warps':>5} {'blocks':>6} "
    f"{'matrix':>16} {'MB moved':>8} {'MB asked':>8} {'GFLOP':>6} {'us':>7}"
)
_SUM_HEADER = (
    f"{'':22} {'':8} {'kernels':>7} {'others':>6} {'MB moved':>8} {'floor':>7} {'ratio':>6} {'kept':>7} "
    f"{'of both':>7} {'MB asked':>8} {'GFLOP':>6} {'us':>7}"
)
_code = cache(machine_code)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Bytes moved once and asked for, FLOP of matrix products, and estimated seconds."""

    moved: float
    asked: float
    flop: float
    seconds: float

    @classmethod
    def total(cls, costs: "Sequence[Cost]") -> "Cost":
        return cls(
            moved=sum(each.moved for each in costs),
            asked=sum(each.asked for each in costs),
            flop=sum(each.flop for each in costs),
            seconds=sum(each.seconds for each in costs),
        )


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """One distinct kernel in a pass of a part; the costs are those of all its launches.

    `not_followed` says why the kernel's text could not be followed; each argument then counts once.
    """

    kernel: str
    launches: int
    code: MachineCode
    shared_memory: int
    warps: int
    blocks: int  # that a multiprocessor holds at once
    cost: Cost
    not_followed: str | None

    def line(self) -> str:
        matrix = ", ".join(f"{count} {kind}" for kind, count in self.code.matrix.items())
        return (
            f"  {self.kernel:36} {self.launches:8} {self.code.registers:9} {self.code.spills:6} "
            f"{self.shared_memory / 1024:10.1f} {self.warps:5} {self.blocks:6} {matrix or '-':>16} "
            f"{_numbers(self.cost)}"
            + (f"\n    not followed, so each argument counts once: {self.not_followed}" if self.not_followed else "")
        )


@dataclass(frozen=True, kw_only=True)
class PassRow:
    """A pass of a part: its kernels, and the other operators by name."""

    name: str
    backward: bool
    kernels: list[KernelRow]
    operators: dict[str, int]
    operators_cost: Cost
    floor: int
    kept: int

    @property
    def cost(self) -> Cost:
        return Cost.total([*(row.cost for row in self.kernels), self.operators_cost])

    def lines(self) -> Iterator[str]:
        yield f"{self.name}, {self.direction}"
        yield from (row.line() for row in self.kernels)
        if self.operators:
            names = ", ".join(f"{count} {name}" for name, count in self.operators.items())
            name = f"PyTorch's ({len(self.operators)} kinds)"
            yield f"  {name:36} {sum(self.operators.values()):8} {'':57} {_numbers(self.operators_cost)}"
            yield f"    {names}"

    def sum_line(self, earlier: Mapping[str, float] | None) -> str:
        """Return the line of the sums, with the ratios to `earlier` costs of the same pass if there are some."""
        cost, launches = self.cost, sum(row.launches for row in self.kernels)
        ratios = ""
        if earlier is not None:
            ratios = f" {cost.moved / earlier['moved']:11.2f} {cost.seconds / earlier['seconds']:9.2f}"
        return (
            f"{self.name:22} {self.direction:8} {launches:7} {sum(self.operators.values()):6} {cost.moved / 1e6:8.1f} "
            f"{self.floor / 1e6:7.1f} {cost.moved / self.floor:6.2f} {self.kept / 1e6:7.1f} "
            f"{cost.moved / (self.floor + self.kept):7.2f} {cost.asked / 1e6:8.1f} {cost.flop / 1e9:6.1f} "
            f"{1e6 * cost.seconds:7.1f}{ratios}"
        )

    @property
    def direction(self) -> str:
        return "backward" if self.backward else "forward"

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a dict for JSON."""
        return asdict(self) | {"cost": asdict(self.cost)}


def show(
    sizes: PassSizes, architectures: Sequence[str], only: str, path: Path | None, earlier_path: Path | None = None
) -> None:
    """Print the tables of all parts for each architecture; with a path, also write them there as JSON.

    Only parts whose name contains `only` are shown. Sums are compared with those of an earlier JSON file, if one is
    given. Raise `InputError` if there is no such part or no such file.
    """
    earlier = {} if earlier_path is None else _earlier(earlier_path)
    names = [name for name in NAMES if only in name]
    if not names:
        raise InputError(f"no part's name contains {printable(only)!r}; they are {', '.join(NAMES)}")
    found = []
    for architecture in architectures:
        gpu = GPUS[architecture]
        recorder = Recorder(card=gpu.card, compiled=partial(compiled_launches, int(architecture.removeprefix("sm_"))))
        print(
            f"{architecture} ({gpu.card.name}): {sizes.preset}, {sizes.residues} residues, "
            f"{sizes.rows} + {sizes.extra_rows} rows, {dtype_name(sizes.dtype)}, in training"
        )
        print(_HEADER)
        rows = []
        for each in passes(sizes, names, recorder):
            rows.append(pass_row(each, gpu))
            if each.name != BLOCK:
                print("\n".join(rows[-1].lines()), flush=True)
        for operator, reason in recorder.refusals.items():
            print(f"no kernel of ours computes {operator}: {reason}")
        print(f"\n{_SUM_HEADER}{' moved/before us/before' if earlier else ''}")
        print("\n".join(row.sum_line(earlier.get((architecture, row.name, row.backward))) for row in rows))
        block = [row for row in rows if row.name == BLOCK]
        if block:
            cost, floor = Cost.total([row.cost for row in block]), sum(row.floor for row in block)
            with_kept = floor + sum(row.kept for row in block)
            print(
                f"the block forward and backward: {cost.moved / floor:.2f} times the floor moved, "
                f"{cost.moved / with_kept:.2f} with what is kept, {1e6 * cost.seconds:,.0f} us"
            )
        print()
        found.append({"arch": architecture, "refusals": recorder.refusals, "passes": [row.to_dict() for row in rows]})
    print(NOTE)
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n")


def _earlier(path: Path) -> dict[tuple[str, str, bool], dict[str, float]]:
    """Return the costs of passes by architecture, name and direction from an earlier JSON file."""
    try:
        tables = json.loads(path.read_text())
        return {(each["arch"], row["name"], row["backward"]): row["cost"] for each in tables for row in each["passes"]}
    except OSError as error:
        raise InputError(f"{printable(str(path))} cannot be read: {error_reason(error)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{printable(str(path))} is no table that --json wrote") from error


def pass_row(given: Pass, gpu: Gpu) -> PassRow:
    """Return the row of a pass on a GPU."""
    by_kernel: dict[CompiledKernel, list[Launch]] = {}
    for launch in given.launches:
        by_kernel.setdefault(launch.kernel, []).append(launch)
    operators = []
    for call in given.operators:
        seconds = operator_seconds(gpu, moved=call.moved, flop=call.flop, in_float32=call.in_float32)
        operators.append(Cost(moved=call.moved, asked=call.moved, flop=call.flop, seconds=seconds))
    return PassRow(
        name=given.name,
        backward=given.backward,
        kernels=[_kernel_row(kernel, launches, gpu) for kernel, launches in by_kernel.items()],
        operators=dict(Counter(call.name for call in given.operators).most_common()),
        operators_cost=Cost.total(operators),
        floor=given.floor,
        kept=given.kept,
    )


def _kernel_row(kernel: CompiledKernel, launches: list[Launch], gpu: Gpu) -> KernelRow:
    code = _code(kernel)
    blocks = gpu.blocks_at_once(kernel.warps, code.registers, kernel.shared_memory)
    reason = None
    costs = []
    for launch in launches:
        try:
            work = launch_work(launch)
            moved = moved_bytes(launch, work)
        except NotFollowedError as error:
            work, moved, reason = Work(), given_bytes(launch), str(error)
        costs.append(_cost(launch, work, moved, blocks, gpu))
    return KernelRow(
        kernel=kernel.name,
        launches=len(launches),
        code=code,
        shared_memory=kernel.shared_memory,
        warps=kernel.warps,
        blocks=blocks,
        cost=Cost.total(costs),
        not_followed=reason,
    )


def _cost(launch: Launch, work: Work, moved: float, blocks: int, gpu: Gpu) -> Cost:
    seconds = estimated_seconds(
        gpu,
        launch.grid,
        warps=launch.kernel.warps,
        blocks_at_once=blocks,
        moved=moved,
        asked=work.sectors,
        flop=work.flop,
        instructions=work.instructions,
    )
    return Cost(moved=moved, asked=work.sectors, flop=work.flop, seconds=seconds)


def _numbers(cost: Cost) -> str:
    return f"{cost.moved / 1e6:8.1f} {cost.asked / 1e6:8.1f} {cost.flop / 1e9:6.1f} {1e6 * cost.seconds:7.1f}"
