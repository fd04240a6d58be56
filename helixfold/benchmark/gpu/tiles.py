"""The part `tiles` of `benchmark.py gpu`: kernels of a block with other tiles, warps and stages than they have.

Every launch of a block's forward and backward pass is timed as it is and with each of the choices below, on the
arguments that it had. What is faster is for whoever writes the tiles into the code: results are not compared, which a
test does in Triton's interpreter.
"""

import inspect
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from helixfold.benchmark.block import evoformer, random_streams
from helixfold.benchmark.machine import BenchmarkDevice
from helixfold.benchmark.options import CommonOptions
from helixfold.benchmark.table import Readings
from helixfold.benchmark.timing import Cost
from helixfold.execution.stages import mean_seconds, synchronize
from helixfold.execution.whole import Whole
from helixfold.ops.triton.attention_tiles import LARGEST_TILE, program_count, tile_size
from helixfold.ops.triton.language import Kernel, cdiv, watched

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
    stack = evoformer(preset, 1, device).bfloat16().requires_grad_(True)
    msa, pair, *masks = random_streams(preset, *sizes, torch.bfloat16, device)
    leaves = [msa.requires_grad_(), pair.requires_grad_(), *stack.parameters()]

    def both() -> None:
        outputs = stack(Whole(), msa, pair, *masks)
        torch.autograd.grad(outputs, leaves, [torch.ones_like(each) for each in outputs])

    return launches_of(both)


def readings(
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
        return Cost(failure=f"{type(error).__name__}: {error}")


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
