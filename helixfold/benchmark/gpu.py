"""Run all benchmarks on one GPU, part by part (`python scripts/benchmark.py gpu`).

This module uses argparse and needs only PyTorch, Triton, NumPy, einops and jaxtyping, so that it runs on rented
machines, which have few packages. `PARTS` has the function of each part, `CHOICES` the tile sizes to try for each
kernel, and `TINY` small sizes to try the command.
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
from helixfold.benchmark.memory import PREDICTION, Point, measure_in_process
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

_PRINTED_CHOICES = 3  # maximum number of other choices that are printed for each launch
_LAUNCHES_PER_MEASUREMENT = 20
# Values of tile sizes and launch options to try, by kernel. Names that are not parameters of the kernel are options of
# its launch.
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
class KernelLaunch:
    """A launch of a kernel: the grid, the arguments by parameter name, and Triton's options."""

    kernel: Kernel
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The kernel's module and function, such as "transition.forward"."""
        return f"{self.kernel.jitted.fn.__module__.rpartition('.')[2]}.{self.kernel.name.lstrip('_')}"

    def changed(self, change: Mapping[str, int]) -> "KernelLaunch":
        """Return the launch with other tiles or options, and the grid and buffers that they need.

        `change` has the new values by the name of a parameter or option. A limit on registers is dropped.
        """
        arguments = {name: change.get(name, value) for name, value in self.arguments.items()}
        options = {**self.options, **{name: value for name, value in change.items() if name not in arguments}}
        # A limit on registers applies only to the original tiles.
        options.pop("maxnreg", None)
        grid = _GRID_FUNCTIONS[self.name](arguments, self.grid)
        return replace(self, grid=grid, arguments=arguments, options=options)

    def run(self) -> None:
        """Launch the kernel."""
        self.kernel.jitted[self.grid](**self.arguments, **self.options)

    def compile(self) -> None:
        """Compile the kernel without launching it."""
        self.kernel.jitted.run(grid=self.grid, warmup=True, **self.arguments, **self.options)

    def choices(self) -> Iterator[tuple[str, "KernelLaunch"]]:
        """Yield descriptions and launches: first the original as "ours", then each combination of `CHOICES`.

        Combinations with tiles that are larger than the problem are left out.
        """
        yield "ours", self
        values = CHOICES.get(self.name, {})
        for combination in itertools.product(*values.values()) if values else ():
            change = dict(zip(values, combination, strict=True))
            if all(change[name] <= limit for name, limit in self._max_tiles().items() if name in change):
                yield ", ".join(f"{name} {value}" for name, value in change.items()), self.changed(change)

    def _max_tiles(self) -> dict[str, int]:
        """Return the maximum tile sizes: the numbers of channels, and the number of keys that masks are padded for."""
        arguments = self.arguments
        limits = {
            "block_hidden": arguments.get("hidden"),
            "block_c": arguments.get("c"),
            "part": arguments.get("c_z", arguments.get("c")),
        }
        if "sizes" in arguments:
            limits["block_k"] = tile_size(arguments["sizes"][3], LARGEST_TILE)
        return {name: size for name, size in limits.items() if size is not None}


def launches_of(action: Callable[[], object]) -> list[KernelLaunch]:
    """Run an action and return the launches of our kernels in it, in order.

    Only the first of launches with the same kernel, grid, absent arguments and keyword arguments is returned.
    """
    launches: dict[object, KernelLaunch] = {}

    def watch(kernel: Kernel, grid: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parameters = inspect.signature(kernel.jitted.fn)
        own = {name: value for name, value in kwargs.items() if name in parameters.parameters}
        options = {name: value for name, value in kwargs.items() if name not in own}
        launch = KernelLaunch(kernel, grid, parameters.bind(*args, **own).arguments, options)
        absent = tuple(name for name, value in launch.arguments.items() if value is None)
        launches.setdefault((launch.name, grid, absent, tuple(own.values())), launch)

    with watched(watch):
        action()
    return list(launches.values())


def block_launches(preset: str, sizes: tuple[int, int], device: torch.device) -> list[KernelLaunch]:
    """Run an Evoformer block forward and backward in bfloat16, and return its different kernel launches.

    `sizes` has the numbers of residues and MSA rows. See `launches_of`.
    """
    return launches_of(random_block(preset, *sizes, torch.bfloat16, device))


def tile_readings(
    preset: str, sizes: tuple[int, int], common: CommonOptions, machine: BenchmarkDevice
) -> Iterator[Readings]:
    """Yield, for each launch of a kernel in `CHOICES` by a block, its time with our tiles and with other tiles.

    Only the three fastest other choices are reported for a launch. `sizes` has the numbers of residues and MSA rows. On
    a GPU, all choices are first compiled in parallel processes.
    """
    launches = block_launches(preset, sizes, machine.device)
    if machine.device.type == "cuda":
        _compile_by_all_processors(preset, sizes)
    for launch in launches:
        if launch.name not in CHOICES:
            continue
        costs = {by: _cost(each, machine.device, common.repeats or 3) for by, each in launch.choices()}
        fastest = sorted((by for by in costs if costs[by].failure is None), key=lambda by: costs[by].seconds)
        printed = ["ours", *[by for by in fastest if by != "ours"][:_PRINTED_CHOICES]]
        channels = launch.arguments.get("c", launch.arguments.get("channels"))
        yield Readings(
            part="tiles",
            name=f"{launch.name}, {sizes[0]} residues, {sizes[1]} rows, {channels} channels",
            dtype=torch.bfloat16,
            passes=f"grid {' x '.join(map(str, launch.grid))}",
            costs={by: costs[by] for by in printed},
            notes=(f"{len(fastest) - 1} of {len(costs) - 1} choices can be launched",),
        )


def _cost(launch: KernelLaunch, device: torch.device, repeats: int) -> Cost:
    try:
        launch.run()
        synchronize(device)
        return Cost(
            seconds=min(mean_seconds(launch.run, _LAUNCHES_PER_MEASUREMENT, device=device) for _ in range(repeats))
        )
    # For example, the tiles need more shared memory than the GPU has.
    except Exception as error:
        return Cost(failure=reason_of_failure(error))


def _compile_by_all_processors(preset: str, sizes: tuple[int, int]) -> None:
    """Compile all choices in parallel processes; Triton caches the compiled kernels on disk."""
    count = max(1, (os.cpu_count() or 1) - 1)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_compile_some, args=(preset, sizes, index, count)) for index in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _compile_some(preset: str, sizes: tuple[int, int], process: int, count: int) -> None:
    every = (each for launch in block_launches(preset, sizes, torch.device("cuda")) for _, each in launch.choices())
    for index, each in enumerate(every):
        if index % count == process:
            # Errors are ignored here, because they are reported when the kernel is timed.
            with suppress(Exception):
                each.compile()


_Grid = tuple[int, ...]


def _resize_sums(arguments: dict[str, Any], name: str, count: int) -> None:
    """Replace a kernel's buffer for partial sums with one of `count` elements, if it has one."""
    buffer: Tensor | None = arguments[name]
    if buffer is not None:
        arguments[name] = buffer.new_empty(count)


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
        _resize_sums(arguments, "sums_at", samples * arguments["tiles"] * arguments["sums_width"])
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
    _resize_sums(arguments, "sums_at", tiles * arguments["hidden"])
    return (tiles * (arguments["hidden"] // arguments["block_hidden"]),)


def _outer(arguments: dict[str, Any], before: _Grid) -> _Grid:
    tiles = (cdiv(arguments[f"size_{each}"], arguments[f"block_{each}"]) for each in "ij")
    return next(tiles) * next(tiles), before[1]


def _outer_operand(arguments: dict[str, Any], before: _Grid) -> _Grid:
    return cdiv(arguments["size_own"], arguments["block_own"]) * (arguments["c"] // arguments["block_c"]), *before[1:]


def _outer_weight(arguments: dict[str, Any], before: _Grid) -> _Grid:
    return arguments["c"] // arguments["block_c"], before[1]


_GRID_FUNCTIONS: dict[str, Callable[[dict[str, Any], _Grid], _Grid]] = {
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
    """Preset and sizes with which a GPU is measured.

    `operators`, `models`, `chains` and `peers` are the numbers of residues for the parts "ops", "model", "long" and
    "peers". `blocks` are pairs of residues and MSA rows for "block"; the first pair is also used for "tiles" and
    traces. `rows` and `extra_rows` are the MSA rows of whole networks. Each of `stages` is a training step with the
    options of `step`, measured with each checkpoint policy in `policies`.
    """

    preset: str = "model_1"
    operators: tuple[int, ...] = (256, 384, 1024)
    blocks: tuple[tuple[int, int], ...] = ((256, 128), (384, 512))  # residues and rows
    models: tuple[int, ...] = (256, 512, 1024, 2048)
    plain_models: tuple[int, ...] = (256,)  # residues for which plain PyTorch is measured, too
    rows: int = 512
    extra_rows: int = 1024
    stages: tuple[Size, ...] = ("initial_training", "finetuning")
    step: StepOptions = field(default_factory=lambda: StepOptions(num_recycles=1))
    policies: tuple[Keep, ...] = ("none", "inputs", "block")
    chains: tuple[int, ...] = (2048, 4096, 10_000)
    peers: tuple[int, ...] = (256, 512, 1024)


# Small sizes to try the command on a CPU.
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
    """Yield readings of every operator at each length in `sizes.operators` (`ops.readings`).

    Results that differ from the reference give a note.
    """
    yield from ops.readings(_operators(sizes), common, machine)


def blocks(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of one Evoformer block at each of `sizes.blocks` (see `block.readings`)."""
    for residues, rows in sizes.blocks:
        yield from block.readings(BlockOptions(preset=sizes.preset, residues=residues, rows=rows), common, machine)


def models(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of one forward pass of the whole network for each number of residues in `sizes.models`.

    Lengths in `sizes.plain_models` are also measured with plain PyTorch and in slabs; others only whole.
    """
    for residues in sizes.models:
        ways: tuple[Way, ...] = ("plain", "whole", "slabs") if residues in sizes.plain_models else ("whole",)
        yield from model.readings(_model(sizes, residues, ways), common, machine)


def steps(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of a training step for each stage and checkpoint policy, or its failure.

    The reading of the whole step has a note on the policy that "auto" would choose.
    """
    for stage in sizes.stages:
        note = _auto_policy(stage, machine.device)
        for keep in sizes.policies:
            readings = step.readings(replace(sizes.step, size=stage, checkpoint_policy=keep), common, machine)
            for reading in _or_failure(readings, f"training step, {stage}, recompute {keep}", "step", common):
                yield replace(reading, notes=(*reading.notes, note)) if reading.passes == WHOLE else reading


def _auto_policy(stage: Size, device: torch.device) -> str:
    """Describe the checkpoint policy that "auto" would choose for this stage in the free memory."""
    config = replace(step.STAGES[stage](), recompute=RecomputeConfig.everywhere("auto"))
    properties, memory = properties_of(device), available_memory(device)
    try:
        return f"auto {with_settled_recompute(config, memory, properties)[1]}"
    except ConfigError as error:
        return f"auto: {error}"


def long_chains(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield the time and peak memory of two recycling iterations of long chains by each executor.

    Each stack has one block, because memory does not depend on the number of blocks. Executors that need more than the
    free memory are not measured; their cost is a failure. The notes have the estimates of memory.
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
                notes.append(f"estimate for {executor}: {gib(point.needs())}")
            yield Readings(
                part="long",
                name=f"{sizes.preset} with one block per stack, {residues} residues, {sizes.rows} rows",
                dtype=getattr(torch, dtype),
                passes="forward",
                costs=costs,
                notes=tuple(notes),
            )


def _chain(point: Point, device: torch.device) -> Cost:
    settle()
    needed, free = point.needs(), available_memory(device)
    if needed > free:
        return Cost(failure=f"needs {gib(needed)}, but {gib(free)} are free")
    with TemporaryDirectory() as spill:
        measurement = measure_in_process(Mesh.alone(device), point, Path(spill), limit=None)
    if measurement.failure is not None:
        return Cost(failure=measurement.failure)
    return Cost(seconds=measurement.seconds, memory=measurement.peak)


def peers(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of other packages next to ours: of triangle operators, then of DeepMind's program.

    DeepMind's program is measured as published and with ColabFold's kernels, for each length in `sizes.peers`.
    """
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
    """Yield readings, and after an error, such as running out of memory, a reading with the failure."""
    try:
        yield from readings
    except Exception as error:
        failure = Cost(failure=reason_of_failure(error))
        dtype = getattr(torch, common.dtypes[0])
        yield Readings(part=part, name=name, dtype=dtype, passes="-", costs={"ours": failure})
    settle()


def other_tiles(sizes: Sizes, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of a block's kernels with our tiles and other tiles (`tile_readings`), in bfloat16.

    The block has the first size of `sizes.blocks`.
    """
    yield from tile_readings(sizes.preset, sizes.blocks[0], common, machine)


# A part of the command: a function that measures and yields readings.
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
    """Yield the readings of the parts with these names, keys of `PARTS`.

    A part that fails yields a reading with the failure, and the next part is measured.
    """
    for name in names:
        yield from _or_failure(PARTS[name](sizes, common, machine), f"the part {name}", name, common)


_PROFILE_TABLE_ROWS = 60


def write_traces(directory: Path, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> list[Path]:
    """Profile a block and a training step, write the tables and traces to the directory, and return their paths.

    The files are `block.txt`, `block.json.gz`, `step.txt` and `step.json.gz`. Each is for one call after two warm-up
    calls. chrome://tracing and ui.perfetto.dev open the `.json.gz` files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    block_pass = block.random_block(sizes.preset, *sizes.blocks[0], dtype, device)
    for name, action in (("block", block_pass), ("step", _step(sizes, dtype, device))):
        paths += _write(directory / name, action, device)
    return paths


def _write(path: Path, action: Callable[[], object], device: torch.device) -> list[Path]:
    for _ in range(2):
        action()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    synchronize(device)
    with profile(activities=activities) as profiler:
        action()
        synchronize(device)
    table, trace = path.with_suffix(".txt"), path.with_suffix(".json.gz")
    order = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    table.write_text(
        profiler.key_averages().table(sort_by=order, row_limit=_PROFILE_TABLE_ROWS, max_name_column_width=80) + "\n"
    )
    profiler.export_chrome_trace(str(trace))
    return [table, trace]


def _step(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    # The first policy recomputes nothing; "auto" chooses it if it fits into the GPU's memory.
    options = replace(sizes.step, checkpoint_policy=sizes.policies[0])
    config = step.at_sizes(step.STAGES[sizes.stages[0]](), options)
    parts = step.training_parts(config, dtype, device)
    return lambda: [part() for part in parts.values()]


_PEER_NAMES = {*PACKAGES, *PEERS.values()}
_STARTS_OF_OUR_NAMES = ("ours", "whole", "slabs", "spilled")


def main(words: Sequence[str]) -> int:
    """Measure the parts in these command-line arguments, print readings and a summary, and return exit code 0.

    With --trace, only profiles are written. Wrong arguments end the process with a message and exit code 2.
    """
    parser = argparse.ArgumentParser(prog="benchmark.py gpu", description="Measure one GPU, part by part.")
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts (default: all)")
    parser.add_argument("--dtypes", nargs="+", choices=("bfloat16", "float32"), default=["bfloat16"])
    parser.add_argument("--repeats", type=int, help="number of measurements; the median is reported")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the measurements to FILE")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="only profile a block and a training step, into DIR")
    parser.add_argument("--tiny", action="store_true", help="use small sizes on any device, to try the command")
    arguments = parser.parse_args(words)
    if not arguments.tiny and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU; pass --tiny to try the command on a CPU")
    if arguments.repeats is not None and arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}")
    sizes = TINY if arguments.tiny else Sizes()
    device = pick_device("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.trace is not None:
        for path in write_traces(arguments.trace, sizes, getattr(torch, arguments.dtypes[0]), device):
            print(f"wrote {path}")
        return 0
    common = CommonOptions(
        device=str(device), dtypes=tuple(arguments.dtypes), repeats=arguments.repeats, json=arguments.json
    )
    machine, readings = show(partial(measured, arguments.part, sizes, common), common)
    print("\n".join(summary(readings, machine)))
    return 0


def summary(readings: Sequence[Readings], machine: BenchmarkDevice) -> Iterator[str]:
    """Yield the lines of a table: for each reading, our fastest time, compared with plain PyTorch and the fastest peer.

    The column "of best" has the share of the rate of a large matrix product.
    """
    yield ""
    yield f"{'':112} {'ours, ms':>10} {'of best':>8} {'to plain':>9} {'to peer':>8}"
    for reading in readings:
        rows = {by: row for by in reading.costs if (row := reading.row(by, machine))["seconds"] is not None}
        ours = [row for by, row in rows.items() if by.startswith(_STARTS_OF_OUR_NAMES)]
        peers = [row["seconds"] for by, row in rows.items() if by in _PEER_NAMES]
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
