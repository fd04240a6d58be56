"""Measure ways to do the same work on one device, and print and write the readings next to the machine's best rates."""

import gc
import json
import math
import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from helixfold.benchmark.options import CommonOptions
from helixfold.execution import allocator
from helixfold.execution.allocator import keeping_freed_memory, return_free_memory, returning_freed_memory
from helixfold.execution.device import pick_device
from helixfold.execution.environment import device_name, package_version
from helixfold.execution.graphs import CapturedGraph, GraphCapturer
from helixfold.execution.stages import mean_seconds, peak_memory, reset_peak_memory, synchronize
from helixfold.ops.cpu.products import mapped
from helixfold.parallel.neighbours import busy_neighbours
from helixfold.planning.size import dtype_name

Action = Callable[[], object]
# A reading on a CPU lasts at least so long; shorter work is repeated.
_LEAST_SECONDS = 5e-3
# A large product that would take longer on a CPU is not measured.
_MOST_SECONDS = 1.0
_LINE_LENGTH = 200
# Calls before a capture, in which kernels are compiled and libraries allocate what they keep.
_CALLS_BEFORE = 3
PLAIN, WHOLE = "plain", "whole"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Median seconds of a computation, and its peak memory in bytes beyond what was held before.

    `failure` is the error if it failed; seconds are then NaN.
    """

    seconds: float = math.nan
    memory: int = 0
    failure: str | None = None


def measure(ways: Mapping[str, Action], device: torch.device, repeats: int) -> dict[str, Cost]:
    """Return the cost of each way from `repeats` readings; a way that raises an error has that as its failure.

    Readings of the ways alternate, so that none of them alone has the times in which the machine is faster.
    """
    memory: dict[str, int] = {}
    failures: dict[str, str] = {}
    for name, action in ways.items():
        try:
            action()
            memory[name] = peak_of(action, device)
        # Any error of a kernel or a peer on this machine is its result; the others are still measured.
        except Exception as error:
            failures[name] = reason_of_failure(error)
    running = {name: action for name, action in ways.items() if name in memory}
    seconds: dict[str, list[float]] = {name: [] for name in running}
    # This call gets back the pages that the measurement of memory gave away, and is not counted.
    times = {name: max(1, math.ceil(_LEAST_SECONDS / _seconds(running[name], device))) for name in running}
    for _ in range(repeats):
        for name, action in running.items():
            seconds[name].append(_seconds(action, device, times[name]))
    found = {name: Cost(seconds=statistics.median(seconds[name]), memory=memory[name]) for name in running}
    return found | {name: Cost(failure=failure) for name, failure in failures.items()}


def reason_of_failure(error: Exception) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {str(error).strip()[:_LINE_LENGTH]}"


def median_seconds(action: Action, device: torch.device, repeats: int) -> float:
    """Return the median seconds of `repeats` calls, after a first one that is not counted."""
    return statistics.median([_seconds(action, device) for _ in range(repeats + 1)][1:])


def measure_parts(parts: Mapping[str, Action], device: torch.device, repeats: int) -> dict[str, Cost]:
    """Return the cost of parts that run one after the other, and of all of them together as "whole".

    The first round measures memory; its time counts only if `repeats` is 1.
    """
    seconds: dict[str, list[float]] = {name: [] for name in (*parts, WHOLE)}
    memory: dict[str, int] = {}
    settle()
    reset_peak_memory(device)
    start = most = held_memory(device)
    for number in range(repeats if repeats == 1 else repeats + 1):
        total = 0.0
        for name, action in parts.items():
            reset_peak_memory(device)
            held = held_memory(device)
            seconds[name].append(mean_seconds(action, device=device))
            total += seconds[name][-1]
            if number == 0:
                memory[name] = max(0, peak_memory(device) - held)
                most = max(most, peak_memory(device))
        if WHOLE not in parts:
            seconds[WHOLE].append(total)
    memory.setdefault(WHOLE, most - start)
    return {
        name: Cost(seconds=statistics.median(found[repeats > 1 :]), memory=memory[name])
        for name, found in seconds.items()
    }


def settle() -> None:
    """Free the memory that earlier measurements left in this process."""
    gc.collect()
    return_free_memory()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_of(action: Action, device: torch.device) -> int:
    """Return the peak memory of an action in bytes, beyond what is held before.

    On a CPU, freed memory is given back to the system at once, so that it does not count.
    """
    gc.collect()
    with returning_freed_memory():
        return peak_beyond(action, device)


def peak_beyond(action: Action, device: torch.device) -> int:
    """Return the peak memory of an action in bytes, beyond what is held before, with the allocator as it is set."""
    synchronize(device)
    reset_peak_memory(device)
    start = held_memory(device)
    action()
    synchronize(device)
    return max(0, peak_memory(device) - start)


def held_memory(device: torch.device) -> int:
    """Return the bytes in use now; on a CPU this is right only just after the peak was reset."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else peak_memory(device)


def replayed(action: Action, device: torch.device) -> Action:
    """Return a call that captures `action` the first time, and from then on replays it and returns the same tensors.

    The action may compute gradients. It must read and write the same memory at each call: values that are changed in
    place are seen by the next replay. On a CPU there are no graphs, and the action itself is returned.
    """
    if device.type != "cuda":
        return action

    @cache
    def captured() -> CapturedGraph[object]:
        capturer = GraphCapturer(device)
        for _ in range(_CALLS_BEFORE):
            capturer.launch(action)
        return capturer.capture(action)

    def replay() -> object:
        graph = captured()
        graph.replay()
        return graph.result

    return replay


def _seconds(action: Action, device: torch.device, times: int = 1) -> float:
    """Return the seconds of one call; on a CPU the mean over `times`."""
    return _seconds_on_gpu(action, device) if device.type == "cuda" else mean_seconds(action, times)


def _seconds_on_gpu(action: Action, device: torch.device) -> float:
    """Return the seconds of a call between GPU events, with its operands out of the cache as in a network."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # While this runs, the CPU queues the kernels that follow.
    _cache_sweep(device).zero_()
    start.record()
    action()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end) / 1e3


@cache
def _cache_sweep(device: torch.device) -> Tensor:
    return torch.empty(2**28, dtype=torch.uint8, device=device)


_SHOWN = ("torch", "triton", "trifast", "cuequivariance_torch", "numpy")


@dataclass(frozen=True, kw_only=True)
class BenchmarkDevice:
    """A device with its best rates: FLOPs per second of a product by dtype, and bytes read and written per second."""

    device: torch.device
    name: str
    threads: int
    versions: dict[str, str]
    load: float  # mean number of running processes in the minute before
    allocator: str
    product: dict[torch.dtype, float] = field(default_factory=dict)
    copy: float = 1.0

    def lines(self) -> list[str]:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        rates = ", ".join(
            f"{rate / 1e9:,.0f} GFLOP/s in products of {dtype_name(dtype)}" for dtype, rate in self.product.items()
        )
        return [
            f"{self.name} ({self.device}), {self.threads} threads, load average {self.load:.2f}",
            f"{platform.system()}, {versions}; {self.allocator}",
            f"at best {rates}, {self.copy / 1e9:,.1f} GB/s read and written in copies",
        ]

    def to_dict(self) -> dict[str, object]:
        """Return the machine as a dict for JSON."""
        return {
            "device": str(self.device),
            "name": self.name,
            "threads": self.threads,
            "versions": self.versions,
            "load": self.load,
            "allocator": self.allocator,
            "product_flops": {dtype_name(dtype): rate for dtype, rate in self.product.items()},
            "copy_bytes": self.copy,
        }


def measured_device(device: torch.device, dtypes: Sequence[torch.dtype], repeats: int) -> BenchmarkDevice:
    """Return a device with its rates measured; `repeats` is the number of readings for each."""
    refused = allocator.unsupported_reason()
    return BenchmarkDevice(
        device=device,
        name=device_name(device),
        threads=torch.get_num_threads(),
        versions={"Python": platform.python_version()}
        | {name: version for name in _SHOWN if (version := package_version(name)) is not None},
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        allocator="freed memory is kept" if refused is None else f"allocator as it is: {refused}",
        product={dtype: product_rate(device, dtype, repeats) for dtype in dtypes},
        copy=copy_rate(device, repeats),
    )


def product_rate(device: torch.device, dtype: torch.dtype, repeats: int) -> float:
    """Return the FLOPs per second of a large matrix product.

    On a CPU, the faster of PyTorch's two libraries counts, and the product is small where a large one takes minutes,
    as in bfloat16 on processors without instructions for it.
    """
    rate = math.inf
    for size in (8192,) if device.type == "cuda" else (256, 2048):
        if 2 * size**3 / rate > _MOST_SECONDS:
            break
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        ways = [partial(torch.matmul, a, b), partial(mapped, a, b)][: 2 if device.type == "cpu" else 1]
        rate = 2 * size**3 / min(median_seconds(way, device, repeats) for way in ways)
    return rate


def copy_rate(device: torch.device, repeats: int) -> float:
    """Return the bytes read and written per second by a copy that is too large for the caches."""
    source = torch.ones(2**28 if device.type == "cuda" else 2**25, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_seconds(lambda: target.copy_(source), device, repeats)


HEADER = (
    f"{'':22} {'by':28} {'ms':>10} {'GFLOP/s':>9} {'of best':>8} {'GB/s':>8} {'of best':>8} {'MiB':>9} "
    f"{'faster':>7} {'memory':>7}"
)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Floating-point operations of matrix products, and the least bytes that must be read and written."""

    flops: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Costs of one computation done in several ways; `work` is the same for all of them.

    The way called "plain" is the reference that others are compared with.
    """

    part: str
    name: str
    dtype: torch.dtype
    passes: str  # "forward", "forward and backward", or the part of a training step
    costs: dict[str, Cost]
    work: Work | None = None
    notes: tuple[str, ...] = ()

    def lines(self, machine: BenchmarkDevice) -> list[str]:
        """Return a line for each way, and the notes.

        Rates stand beside the machine's best rates, time and memory beside those of the plain way.
        """
        lines = []
        for by, cost in self.costs.items():
            start = f"{self.passes:22} {by:28}"
            if cost.failure is not None:
                lines.append(f"{start} failed: {cost.failure}")
                continue
            row = self.row(by, machine)
            numbers = [
                f"{1e3 * cost.seconds:10.3f}",
                _number(row["gflops"], "9,.0f"),
                _number(row["share_of_product"], "8.0%"),
                _number(row["gigabytes_per_second"], "8,.1f"),
                _number(row["share_of_copy"], "8.0%"),
                f"{cost.memory / 2**20:9,.1f}",
                _number(row["times_faster"], "6.2f") + ("x" if row["times_faster"] else " "),
                _number(row["memory_ratio"], "7.2f"),
            ]
            lines.append(" ".join([start, *numbers]))
        return lines + [f"  {note}" for note in self.notes]

    def row(self, by: str, machine: BenchmarkDevice) -> dict[str, Any]:
        """Return the costs of a way as a dict for JSON."""
        cost, plain = self.costs[by], self.costs.get(PLAIN)
        row: dict[str, Any] = {
            "part": self.part,
            "name": self.name,
            "dtype": dtype_name(self.dtype),
            "passes": self.passes,
            "by": by,
            "failure": cost.failure,
            "seconds": None if math.isnan(cost.seconds) else cost.seconds,
            "memory_bytes": cost.memory,
            "notes": list(self.notes),
        }
        flops, moved = (self.work.flops, self.work.bytes) if self.work is not None else (0, 0)
        rate, speed = flops / cost.seconds, moved / cost.seconds
        compared = plain is not None and plain.failure is None and cost.failure is None
        return row | {
            "flops": flops or None,
            "least_bytes": moved or None,
            "gflops": _finite(rate / 1e9),
            "share_of_product": _finite(rate / machine.product.get(self.dtype, math.inf)),
            "gigabytes_per_second": _finite(speed / 1e9),
            "share_of_copy": _finite(speed / machine.copy),
            "times_faster": plain.seconds / cost.seconds if plain is not None and compared else None,
            "memory_ratio": cost.memory / plain.memory if plain is not None and compared and plain.memory else None,
        }


def _finite(value: float) -> float | None:
    return None if math.isnan(value) or value == 0 else value


def _number(value: float | None, form: str) -> str:
    width = int(form.partition(".")[0].rstrip(","))
    return f"{'-':>{width}}" if value is None else format(value, form)


def show(
    readings: Callable[[BenchmarkDevice], Iterator[Readings]], options: CommonOptions
) -> tuple[BenchmarkDevice, list[Readings]]:
    """Measure the machine, then print readings as the function `readings` yields them for it; return both.

    With `options.json`, all readings are also written to that file, again after each of them.
    """
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = pick_device(options.device)
    with keeping_freed_memory():
        machine = measured_device(device, [getattr(torch, name) for name in options.dtypes], options.repeats or 5)
        print("\n".join(machine.lines()))
        if options.neighbours:
            print(f"measured beside {options.neighbours} busy processes, but for the rates above")
        print(f"\n{HEADER}")
        made: list[Readings] = []
        with busy_neighbours(options.neighbours):
            for reading in readings(machine):
                if not made or (made[-1].name, made[-1].dtype) != (reading.name, reading.dtype):
                    print(f"{reading.name}, {dtype_name(reading.dtype)}")
                print("\n".join(reading.lines(machine)), flush=True)
                made.append(reading)
                rows = [each.row(by, machine) for each in made for by in each.costs]
                table = {"machine": machine.to_dict(), "neighbours": options.neighbours, "readings": rows}
                write_json(options.json, table)
    if hasattr(os, "getloadavg"):
        print(f"load average when it ended: {os.getloadavg()[0]:.2f}")
    return machine, made


def write_json(path: Path | None, content: object) -> None:
    """Write the content of a benchmark's JSON file, if a path is given."""
    if path is not None:
        path.write_text(json.dumps(content, indent=1, default=str) + "\n")
