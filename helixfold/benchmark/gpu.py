"""`python scripts/benchmark.py gpu`: everything that is to be known of one GPU, part by part.

It reads its options with argparse and needs only PyTorch, Triton, NumPy, einops and jaxtyping, as a machine that is
lent for an hour has them.
"""

import argparse
import inspect
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from helixfold.benchmark import block, model, ops, step
from helixfold.benchmark.block import random_block
from helixfold.benchmark.measurement import (
    PLAIN,
    WHOLE,
    BenchmarkDevice,
    Cost,
    Readings,
    reason_of_failure,
    settle,
    show,
)
from helixfold.benchmark.memory import PREDICTION, Point, measured_here
from helixfold.benchmark.model import PEERS
from helixfold.benchmark.op_cases import INCOMING, OUTGOING, TRIANGLE_CORE
from helixfold.benchmark.ops import PACKAGES
from helixfold.benchmark.options import BlockOptions, CommonOptions, ModelOptions, OpsOptions, Size, StepOptions, Way
from helixfold.execution.available import available_memory
from helixfold.execution.device import pick_device
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.execution.stages import mean_seconds, synchronize
from helixfold.model.config import ConfigError
from helixfold.ops.device_properties import properties_of
from helixfold.ops.triton.attention_tiles import LARGEST_TILE, program_count, tile_size
from helixfold.ops.triton.language import Kernel, cdiv, watched
from helixfold.parallel.mesh import Mesh
from helixfold.planning.executors import EXECUTORS
from helixfold.planning.size import gib
from helixfold.training.estimate import with_settled_recompute

_FASTEST = 3  # choices that are shown for each launch
_REPEATS = 20
# Values to try, by kernel. What is no parameter of a kernel is an option of its launch.
CHOICES: dict[str, dict[str, tuple[int, ...]]] = {
    "attention.attend": {"block_q": (64, 128), "block_k": (32, 64), "num_warps": (4, 8), "num_stages": (2, 3)},
    "attention_backward.to_key_and_value": {"block_q": (32, 64), "block_k": (64, 128), "num_warps": (4, 8)},
    "attention_backward.to_query": {
        "block_q": (64, 128),
        "block_k": (32, 64),
        "num_warps": (4, 8),
        "num_stages": (2, 3),
    },
    "attention_backward.to_bias": {"block_k": (64, 128), "num_warps": (4, 8), "num_stages": (2, 3)},
    "layer_norm.forward": {"block_rows": (8, 16, 32), "num_warps": (4, 8)},
    "layer_norm.backward": {"block_rows": (8, 16, 32), "stages": (1, 2, 3)},
    "norm_linear.forward": {"block": (32, 64, 128), "num_warps": (4, 8)},
    "norm_linear.backward": {"block": (32, 64), "num_warps": (4, 8), "num_stages": (1, 3)},
    "output_map.forward": {"block_rows": (32, 64, 128), "part": (32, 64, 128), "num_warps": (4, 8)},
    "output_map.backward": {"block_rows": (32, 64, 128), "part": (32, 64), "num_warps": (4, 8)},
    "outer_product.forward": {"block_i": (8, 16), "block_c": (2, 4), "num_warps": (4, 8), "num_stages": (2, 3)},
    "outer_product_backward.backward_of_operand": {"block_own": (16, 32), "block_other": (2, 4), "num_warps": (4, 8)},
    "outer_product_backward.backward_of_weight": {"block_j": (4, 8), "block_c": (2, 4), "num_stages": (1, 2)},
    "transition.forward": {
        "block_rows": (64, 128),
        "block_hidden": (32, 64),
        "num_warps": (4, 8),
        "num_stages": (2, 3),
    },
    "transition.hidden_gradients": {"block_rows": (64, 128), "block_hidden": (64, 128), "num_warps": (4, 8)},
    "triangle_backward.change_backward": {"block": (32, 64), "part": (16, 32), "num_warps": (4, 8)},
    "triangle_backward.operands_backward": {"block": (32, 64), "part": (16, 32), "num_warps": (4, 8)},
    "triangle_forward.change": {"block": (64, 128), "part": (32, 64), "num_warps": (4, 8)},
    "triangle_forward.operands": {"block": (64, 128), "part": (32, 64), "num_warps": (4, 8)},
}


@dataclass(frozen=True, eq=False)
class Launched:
    """A launch of a kernel: its arguments by the names of the function's parameters, and Triton's options."""

    kernel: Kernel
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Module and function, such as "transition.forward"."""
        return f"{self.kernel.jitted.fn.__module__.rpartition('.')[2]}.{self.kernel.name.lstrip('_')}"

    def changed(self, change: Mapping[str, int]) -> "Launched":
        """Return the launch with other tiles or options, and the grid and the memory that these need."""
        arguments = {name: change.get(name, value) for name, value in self.arguments.items()}
        options = {**self.options, **{name: value for name, value in change.items() if name not in arguments}}
        # A limit of registers is for the tiles that a kernel has.
        options.pop("maxnreg", None)
        grid = _GRIDS[self.name](arguments, self.grid)
        return replace(self, grid=grid, arguments=arguments, options=options)

    def run(self) -> None:
        """Launch the kernel."""
        self.kernel.jitted[self.grid](**self.arguments, **self.options)

    def compile(self) -> None:
        """Compile the kernel and launch nothing."""
        self.kernel.jitted.run(grid=self.grid, warmup=True, **self.arguments, **self.options)

    def choices(self) -> Iterator[tuple[str, "Launched"]]:
        """Yield the launch as it is and with each choice of its kernel, each with its name."""
        yield "ours", self
        values = CHOICES.get(self.name, {})
        for chosen in itertools.product(*values.values()) if values else ():
            change = dict(zip(values, chosen, strict=True))
            if all(change[name] <= most for name, most in self._most().items() if name in change):
                yield ", ".join(f"{name} {value}" for name, value in change.items()), self.changed(change)

    def _most(self) -> dict[str, int]:
        """Return the most channels or keys of tiles; masks are padded for tiles of so many keys."""
        given = self.arguments
        most = {
            "block_hidden": given.get("hidden"),
            "block_c": given.get("c"),
            "part": given.get("c_z", given.get("c")),
        }
        if "sizes" in given:
            most["block_k"] = tile_size(given["sizes"][3], LARGEST_TILE)
        return {name: size for name, size in most.items() if size is not None}


def launches_of(action: Callable[[], object]) -> list[Launched]:
    """Return the launches of kernels that an action makes, each kind of launch once."""
    found: dict[object, Launched] = {}

    def watch(kernel: Kernel, grid: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parameters = inspect.signature(kernel.jitted.fn)
        own = {name: value for name, value in kwargs.items() if name in parameters.parameters}
        options = {name: value for name, value in kwargs.items() if name not in own}
        launched = Launched(kernel, grid, parameters.bind(*args, **own).arguments, options)
        absent = tuple(name for name, value in launched.arguments.items() if value is None)
        found.setdefault((launched.name, grid, absent, tuple(own.values())), launched)

    with watched(watch):
        action()
    return list(found.values())


def block_launches(preset: str, sizes: tuple[int, int], device: torch.device) -> list[Launched]:
    """Return the launches of both passes of an Evoformer block in bfloat16 with so many residues and rows."""
    return launches_of(random_block(preset, *sizes, torch.bfloat16, device))


def tile_readings(
    preset: str, sizes: tuple[int, int], common: CommonOptions, machine: BenchmarkDevice
) -> Iterator[Readings]:
    """Yield for each launch of a block its time as it is and with the fastest choices of tiles."""
    launches = block_launches(preset, sizes, machine.device)
    if machine.device.type == "cuda":
        _compile_by_all_processors(preset, sizes)
    for launched in launches:
        if launched.name not in CHOICES:
            continue
        costs = {by: _cost(each, machine.device, common.repeats or 3) for by, each in launched.choices()}
        fastest = sorted((by for by in costs if costs[by].failure is None), key=lambda by: costs[by].seconds)
        shown = ["ours", *[by for by in fastest if by != "ours"][:_FASTEST]]
        channels = launched.arguments.get("c", launched.arguments.get("channels"))
        yield Readings(
            part="tiles",
            name=f"{launched.name}, {sizes[0]} residues, {sizes[1]} rows, {channels} channels",
            dtype=torch.bfloat16,
            passes=f"grid {' x '.join(map(str, launched.grid))}",
            costs={by: costs[by] for by in shown},
            notes=(f"of {len(costs) - 1} choices {len(fastest) - 1} can be launched",),
        )


def _cost(launched: Launched, device: torch.device, repeats: int) -> Cost:
    try:
        launched.run()
        synchronize(device)
        return Cost(seconds=min(mean_seconds(launched.run, _REPEATS, device=device) for _ in range(repeats)))
    # Tiles that need more shared memory than the card has, for one.
    except Exception as error:
        return Cost(failure=reason_of_failure(error))


def _compile_by_all_processors(preset: str, sizes: tuple[int, int]) -> None:
    """Compile all choices, each in one of as many processes as there are processors; Triton keeps them on disk."""
    count = max(1, (os.cpu_count() or 1) - 1)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_compile_some, args=(preset, sizes, number, count)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _compile_some(preset: str, sizes: tuple[int, int], number: int, count: int) -> None:
    every = (each for launched in block_launches(preset, sizes, torch.device("cuda")) for _, each in launched.choices())
    for place, each in enumerate(every):
        if place % count == number:
            # What cannot be compiled is found again, and named, when it is timed.
            with suppress(Exception):
                each.compile()


_Grid = tuple[int, ...]


def _more(arguments: dict[str, Any], name: str, count: int) -> None:
    """Give a kernel room for so many partial sums, if it writes any."""
    given: Tensor | None = arguments[name]
    if given is not None:
        arguments[name] = given.new_empty(count)


def _attention(side: str) -> Callable[[dict[str, Any], _Grid], _Grid]:
    def grid(arguments: dict[str, Any], before: _Grid) -> _Grid:
        rows, heads, queries, keys = arguments["sizes"]
        count = queries if side == "block_q" else keys
        return program_count(rows, heads, cdiv(count, arguments[side])), before[1]

    return grid


def _bias(arguments: dict[str, Any], before: _Grid) -> _Grid:
    rows, heads, queries, keys = arguments["sizes"]
    parts = cdiv(rows, arguments["rows_of_part"])
    return cdiv(queries, arguments["block_q"]) * cdiv(keys, arguments["block_k"]) * heads * parts, before[1]


def _rows(arguments: dict[str, Any], before: _Grid) -> _Grid:
    return (cdiv(arguments["rows"], arguments["block_rows"]),)


def _positions(arguments: dict[str, Any], before: _Grid) -> _Grid:
    samples = before[0] // arguments["tiles"]
    arguments["tiles"] = cdiv(arguments["positions"], arguments["block"])
    if "sums_at" in arguments:
        _more(arguments, "sums_at", samples * arguments["tiles"] * arguments["sums_width"])
    return (samples * arguments["tiles"],)


def _looping_positions(arguments: dict[str, Any], before: _Grid) -> _Grid:
    samples = arguments["all_tiles"] // arguments["tiles"]
    arguments["tiles"] = cdiv(arguments["positions"], arguments["block"])
    arguments["all_tiles"] = samples * arguments["tiles"]
    return (min(before[0], arguments["all_tiles"]),)


def _looping_rows(arguments: dict[str, Any], before: _Grid) -> _Grid:
    return (min(before[0], *_rows(arguments, before)),)


def _hidden(arguments: dict[str, Any], before: _Grid) -> _Grid:
    (tiles,) = _rows(arguments, before)
    _more(arguments, "sums_at", tiles * arguments["hidden"])
    return (tiles * (arguments["hidden"] // arguments["block_hidden"]),)


def _outer(arguments: dict[str, Any], before: _Grid) -> _Grid:
    tiles = (cdiv(arguments[f"size_{each}"], arguments[f"block_{each}"]) for each in "ij")
    return next(tiles) * next(tiles), before[1]


def _outer_operand(arguments: dict[str, Any], before: _Grid) -> _Grid:
    return cdiv(arguments["size_own"], arguments["block_own"]) * (arguments["c"] // arguments["block_c"]), *before[1:]


def _outer_weight(arguments: dict[str, Any], before: _Grid) -> _Grid:
    return arguments["c"] // arguments["block_c"], before[1]


_GRIDS: dict[str, Callable[[dict[str, Any], _Grid], _Grid]] = {
    "attention.attend": _attention("block_q"),
    "attention_backward.to_key_and_value": _attention("block_k"),
    "attention_backward.to_query": _attention("block_q"),
    "attention_backward.to_bias": _bias,
    "layer_norm.forward": _rows,
    "layer_norm.backward": _looping_rows,
    "norm_linear.forward": _positions,
    "norm_linear.backward": _looping_positions,
    "output_map.forward": _rows,
    "output_map.backward": _rows,
    "outer_product.forward": _outer,
    "outer_product_backward.backward_of_operand": _outer_operand,
    "outer_product_backward.backward_of_weight": _outer_weight,
    "transition.forward": _rows,
    "transition.hidden_gradients": _hidden,
    "triangle_backward.change_backward": _positions,
    "triangle_backward.operands_backward": _positions,
    "triangle_forward.change": _positions,
    "triangle_forward.operands": _positions,
}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Presets, and numbers of residues and of alignment rows, at which a GPU is measured."""

    preset: str = "model_1"
    operators: tuple[int, ...] = (256, 384, 1024)
    blocks: tuple[tuple[int, int], ...] = ((256, 128), (384, 512))  # residues and rows
    models: tuple[int, ...] = (256, 512, 1024, 2048)
    plain_models: tuple[int, ...] = (256,)  # those that plain PyTorch computes, too
    rows: int = 512
    extra_rows: int = 1024
    stages: tuple[Size, ...] = ("initial_training", "finetuning")
    step: StepOptions = field(default_factory=lambda: StepOptions(num_recycles=1))
    policies: tuple[Keep, ...] = ("none", "inputs", "block")
    chains: tuple[int, ...] = (2048, 4096, 10_000)
    peers: tuple[int, ...] = (256, 512, 1024)


# With these, the command is tried on a CPU.
TINY = Sizes(
    preset="tiny",
    operators=(8,),
    blocks=((8, 4),),
    models=(16,),
    plain_models=(16,),
    rows=4,
    extra_rows=4,
    stages=("tiny",),
    step=StepOptions(residues=16, rows=4, num_recycles=1),
    policies=("none", "block"),
    chains=(16,),
    peers=(16,),
)


def operators(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of every operator; results are compared with the reference's in the same run."""
    yield from ops.readings(_operators(sizes), common, machine)


def blocks(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of one Evoformer block."""
    for residues, rows in sizes.blocks:
        yield from block.readings(BlockOptions(preset=sizes.preset, residues=residues, rows=rows), common, machine)


def models(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of one pass of the whole network."""
    for residues in sizes.models:
        ways: tuple[Way, ...] = ("plain", "whole", "slabs") if residues in sizes.plain_models else ("whole",)
        yield from model.readings(_model(sizes, residues, ways), common, machine)


def steps(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of a training step of each stage with each checkpoint policy; a note says which `auto` chooses."""
    for stage in sizes.stages:
        note = _chosen_policy(stage, machine.device)
        for keep in sizes.policies:
            readings = step.readings(replace(sizes.step, size=stage, checkpoint_policy=keep), common, machine)
            for reading in _or_failure(readings, f"training step, {stage}, recompute {keep}", "step", common):
                yield replace(reading, notes=(*reading.notes, note)) if reading.passes == WHOLE else reading


def _chosen_policy(stage: Size, device: torch.device) -> str:
    """Return a sentence on what a run of this stage with recompute "auto" would recompute in the free memory."""
    config = replace(step.STAGES[stage](), recompute=RecomputeConfig.everywhere("auto"))
    properties, memory = properties_of(device), available_memory(device)
    try:
        return f"auto {with_settled_recompute(config, memory, properties)[1]}"
    except ConfigError as error:
        return f"auto: {error}"


def long_chains(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield seconds and peak memory of two recycling iterations of long chains, by executor, with one block a stack.

    Memory does not depend on the number of blocks. An executor that needs more memory than is free is not tried.
    """
    for dtype in common.dtypes:
        for residues in sizes.chains:
            costs, notes = {}, []
            for executor in EXECUTORS:
                point = Point(
                    part=PREDICTION,
                    preset=sizes.preset,
                    blocks=1,
                    residues=residues,
                    rows=sizes.rows,
                    extra_rows=sizes.extra_rows,
                    templates=0,
                    ensemble=1,
                    recycling_iterations=2,
                    dtype=dtype,
                    executor=executor,
                    device=str(machine.device),
                )
                costs[executor] = _chain(point, machine.device)
                notes.append(f"forecast for {executor}: {gib(point.needs())}")
            yield Readings(
                part="long",
                name=f"{sizes.preset} with one block a stack, {residues} residues, {sizes.rows} rows",
                dtype=getattr(torch, dtype),
                passes="forward",
                costs=costs,
                notes=tuple(notes),
            )


def _chain(point: Point, device: torch.device) -> Cost:
    settle()
    needed, free = point.needs(), available_memory(device)
    if needed > free:
        return Cost(failure=f"needs {gib(needed)}, and {gib(free)} are free")
    with TemporaryDirectory() as spill:
        found = measured_here(Mesh.alone(device), point, Path(spill), limit=None)
    if found.failure is not None:
        return Cost(failure=found.failure)
    return Cost(seconds=found.seconds, memory=found.peak)


def peers(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of what other packages compute, beside ours: triangle operators, and DeepMind's program."""
    for name in (TRIANGLE_CORE, OUTGOING, INCOMING):
        yield from ops.readings(replace(_operators(sizes), only=name), common, machine)
    for residues in sizes.peers:
        options = replace(_model(sizes, residues, ("whole",)), peer=("jax", "colabfold"), jax_subbatch=0)
        yield from model.readings(options, common, machine)


def _operators(sizes: Sizes) -> OpsOptions:
    options = OpsOptions(preset=sizes.preset, residues=sizes.operators)
    return replace(options, rows=sizes.rows, extra_rows=sizes.extra_rows) if sizes is TINY else options


def _model(sizes: Sizes, residues: int, ways: tuple[Way, ...]) -> ModelOptions:
    return ModelOptions(
        preset=sizes.preset, residues=residues, rows=sizes.rows, extra_rows=sizes.extra_rows, executors=ways
    )


def _or_failure(readings: Iterator[Readings], name: str, part: str, common: CommonOptions) -> Iterator[Readings]:
    """Yield readings, and after an error, such as memory that runs out, one that says so."""
    try:
        yield from readings
    except Exception as error:
        failure = Cost(failure=reason_of_failure(error))
        dtype = getattr(torch, common.dtypes[0])
        yield Readings(part=part, name=name, dtype=dtype, passes="-", costs={"ours": failure})
    settle()


def other_tiles(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of a block's kernels with other tiles, in bfloat16."""
    yield from tile_readings(sizes.preset, sizes.blocks[0], common, machine)


Part = Callable[[Sizes, CommonOptions, BenchmarkDevice], Iterator[Readings]]
PARTS: dict[str, Part] = {
    "ops": operators,
    "block": blocks,
    "model": models,
    "step": steps,
    "long": long_chains,
    "peers": peers,
    "tiles": other_tiles,
}


def measured(names: list[str], sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield the readings of these parts; a part that fails says so, and the next one is measured."""
    for name in names:
        yield from _or_failure(PARTS[name](sizes, common, machine), f"the part {name}", name, common)


_ROWS = 60


def write_traces(directory: Path, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> list[Path]:
    """Write `block.txt`, `block.json.gz`, `step.txt` and `step.json.gz` to the directory, and return their paths.

    Each is of one call after two that are not recorded. chrome://tracing and ui.perfetto.dev open the `.json.gz`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    block_pass = block.random_block(sizes.preset, *sizes.blocks[0], dtype, device)
    for name, action in (("block", block_pass), ("step", _step(sizes, dtype, device))):
        written += _write(directory / name, action, device)
    return written


def _write(path: Path, action: Callable[[], object], device: torch.device) -> list[Path]:
    for _ in range(2):
        action()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    synchronize(device)
    with profile(activities=activities) as found:
        action()
        synchronize(device)
    table, trace = path.with_suffix(".txt"), path.with_suffix(".json.gz")
    order = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    table.write_text(found.key_averages().table(sort_by=order, row_limit=_ROWS, max_name_column_width=80) + "\n")
    found.export_chrome_trace(str(trace))
    return [table, trace]


def _step(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    # What `auto` chooses where it fits; on a card with less memory, blocks are recomputed.
    options = replace(sizes.step, checkpoint_policy=sizes.policies[0])
    config = step.at_sizes(step.STAGES[sizes.stages[0]](), options)
    parts = step.training_parts(config, dtype, device)
    return lambda: [part() for part in parts.values()]


_PEERS = {*PACKAGES, *PEERS.values()}
_OURS = ("ours", "whole", "slabs", "spilled")


def main(words: Sequence[str]) -> int:
    """Measure what the words of the command line ask for; return the exit code.

    Wrong words end the process with one sentence and exit code 2.
    """
    parser = argparse.ArgumentParser(prog="benchmark.py gpu", description="Measure one GPU, part by part.")
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts, all if not given")
    parser.add_argument("--dtypes", nargs="+", choices=("bfloat16", "float32"), default=["bfloat16"])
    parser.add_argument("--repeats", type=int, help="readings, of which the median counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the readings there, again after each")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="only profile a block and a training step, into DIR")
    parser.add_argument("--tiny", action="store_true", help="small sizes on whatever device there is, for a trial")
    given = parser.parse_args(words)
    if not given.tiny and not torch.cuda.is_available():
        parser.error("there is no GPU that PyTorch can use; --tiny tries the command on a CPU")
    if given.repeats is not None and given.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {given.repeats}")
    sizes = TINY if given.tiny else Sizes()
    device = pick_device("cuda" if torch.cuda.is_available() else "cpu")
    if given.trace is not None:
        for path in write_traces(given.trace, sizes, getattr(torch, given.dtypes[0]), device):
            print(f"wrote {path}")
        return 0
    common = CommonOptions(device=str(device), dtypes=tuple(given.dtypes), repeats=given.repeats, json=given.json)
    machine, made = show(partial(measured, given.part, sizes, common), common)
    print("\n".join(summary(made, machine)))
    return 0


def summary(made: Sequence[Readings], machine: BenchmarkDevice) -> Iterator[str]:
    """Yield a line for each reading: our fastest way beside the plain one and the fastest peer."""
    yield ""
    yield f"{'':112} {'ours, ms':>10} {'of best':>8} {'to plain':>9} {'to peer':>8}"
    for reading in made:
        rows = {by: row for by in reading.costs if (row := reading.row(by, machine))["seconds"] is not None}
        ours = [row for by, row in rows.items() if by.startswith(_OURS)]
        peers = [row["seconds"] for by, row in rows.items() if by in _PEERS]
        title = f"{reading.name[:90]:90} {reading.passes:21}"
        if not ours:
            yield f"{title} {'failed':>10}"
            continue
        best = min(ours, key=lambda row: row["seconds"])
        plain = rows.get(PLAIN)
        ratios = [plain["seconds"] if plain else None, min(peers, default=None)]
        share = f"{best['share_of_product']:8.0%}" if best["share_of_product"] else f"{'-':>8}"
        times = [f"{other / best['seconds']:7.2f}x" if other else f"{'-':>8}" for other in ratios]
        yield f"{title} {1e3 * best['seconds']:10.3f} {share} {times[0]:>9} {times[1]}"
