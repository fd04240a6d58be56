"""Measure several ways to compute the same thing on one device, and report them next to the machine's best rates.

A way has a name in tables. `PLAIN` is the way with PyTorch's own operators, with which others are compared. `WHOLE` is
all parts of a computation together, and `HEADER` has the titles of the table's columns.
"""

import gc
import json
import math
import os
import platform
import statistics
import sys
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
from helixfold.ops.cpu.loops import compiled
from helixfold.ops.cpu.products import mapped
from helixfold.ops.sizes import loops_if_large
from helixfold.parallel.neighbours import busy_neighbours
from helixfold.planning.size import dtype_name

Action = Callable[[], object]
# Minimum time of a measurement on a CPU; shorter work is repeated.
_MIN_SECONDS = 5e-3
# Large products that would take longer on a CPU are not measured.
_MAX_PRODUCT_SECONDS = 1.0
_MAX_MESSAGE_LENGTH = 200
# Calls before a CUDA graph is captured, in which kernels are compiled and libraries allocate buffers.
_WARM_UP_CALLS = 3
# Names in tables: the way with PyTorch's own operators, and all parts of a computation together.
PLAIN, WHOLE = "plain", "whole"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Median time of a computation in seconds, and its peak memory in bytes beyond the memory in use before.

    If the computation failed, `failure` is the error and `seconds` is NaN.
    """

    seconds: float = math.nan
    memory: int = 0
    failure: str | None = None


def measure(ways: Mapping[str, Action], device: torch.device, repeats: int) -> dict[str, Cost]:
    """Measure the cost of each way with `repeats` measurements of time; an error becomes the failure of a way.

    Peak memory is measured once, after a warm-up call. Measurements of the ways alternate, so that changes in the
    machine's speed affect all of them.
    """
    memory: dict[str, int] = {}
    failures: dict[str, str] = {}
    for name, action in ways.items():
        try:
            action()
            memory[name] = peak_of(action, device)
        # An error of a kernel or peer on this machine is a result, too; the other ways are still measured.
        except Exception as error:
            failures[name] = reason_of_failure(error)
    running = {name: action for name, action in ways.items() if name in memory}
    seconds: dict[str, list[float]] = {name: [] for name in running}
    # This uncounted call allocates again the pages that the measurement of memory returned to the system.
    times = {name: max(1, math.ceil(_MIN_SECONDS / _seconds(running[name], device))) for name in running}
    for _ in range(repeats):
        for name, action in running.items():
            seconds[name].append(_seconds(action, device, times[name]))
    costs = {name: Cost(seconds=statistics.median(seconds[name]), memory=memory[name]) for name in running}
    return costs | {name: Cost(failure=failure) for name, failure in failures.items()}


def reason_of_failure(error: Exception) -> str:
    """Return the type and message of an error, with at most 200 characters of the message."""
    return f"{type(error).__name__}: {str(error).strip()[:_MAX_MESSAGE_LENGTH]}"


def median_seconds(action: Action, device: torch.device, repeats: int) -> float:
    """Return the median time of `repeats` calls in seconds, after one uncounted call."""
    return statistics.median([_seconds(action, device) for _ in range(repeats + 1)][1:])


def measure_parts(parts: Mapping[str, Action], device: torch.device, repeats: int) -> dict[str, Cost]:
    """Measure the cost of parts that run one after the other, and of all parts together under the name "whole".

    Each part's memory is its peak beyond the memory before it. The first round measures memory; its time counts only if
    `repeats` is 1. A part that is itself named "whole" is not replaced by the sum.
    """
    seconds: dict[str, list[float]] = {name: [] for name in (*parts, WHOLE)}
    memory: dict[str, int] = {}
    settle()
    reset_peak_memory(device)
    start = peak = held_memory(device)
    for index in range(repeats if repeats == 1 else repeats + 1):
        total = 0.0
        for name, action in parts.items():
            reset_peak_memory(device)
            before = held_memory(device)
            seconds[name].append(mean_seconds(action, device=device))
            total += seconds[name][-1]
            if index == 0:
                memory[name] = max(0, peak_memory(device) - before)
                peak = max(peak, peak_memory(device))
        if WHOLE not in parts:
            seconds[WHOLE].append(total)
    memory.setdefault(WHOLE, peak - start)
    return {
        name: Cost(seconds=statistics.median(times[repeats > 1 :]), memory=memory[name])
        for name, times in seconds.items()
    }


def settle() -> None:
    """Collect garbage, and return the unused memory of this process, on CPU and GPU, to the system."""
    gc.collect()
    return_free_memory()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_of(action: Action, device: torch.device) -> int:
    """Return the peak memory of an action in bytes, beyond the memory in use before.

    On a CPU, freed memory is returned to the system at once, so that it does not count.
    """
    gc.collect()
    with returning_freed_memory():
        return peak_beyond(action, device)


def peak_beyond(action: Action, device: torch.device) -> int:
    """Return the peak memory of an action in bytes, beyond the memory in use before, with the current allocator."""
    synchronize(device)
    reset_peak_memory(device)
    start = held_memory(device)
    action()
    synchronize(device)
    return max(0, peak_memory(device) - start)


def held_memory(device: torch.device) -> int:
    """Return the number of bytes of tensors on a GPU, or the peak memory of the process on a CPU.

    On a CPU this is the memory in use only directly after the peak was reset.
    """
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else peak_memory(device)


def replayed(action: Action, device: torch.device) -> Action:
    """Return a function that captures `action` as a CUDA graph at its first call and replays it at every call.

    The action may compute gradients. It must read and write the same memory at each call; a replay uses values that
    were changed in place. The same tensors are returned each time. On a CPU, the action itself is returned.
    """
    if device.type != "cuda":
        return action

    @cache
    def captured() -> CapturedGraph[object]:
        capturer = GraphCapturer(device)
        for _ in range(_WARM_UP_CALLS):
            capturer.launch(action)
        return capturer.capture(action)

    def replay() -> object:
        graph = captured()
        graph.replay()
        return graph.result

    return replay


def _seconds(action: Action, device: torch.device, times: int = 1) -> float:
    """Return the time of one call in seconds; on a CPU, the mean of `times` calls."""
    return _seconds_on_gpu(action, device) if device.type == "cuda" else mean_seconds(action, times)


def _seconds_on_gpu(action: Action, device: torch.device) -> float:
    """Return the time of a call in seconds, measured with GPU events and with cold caches, as in a network."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # This clears the caches. While it runs, the CPU queues the kernels that follow.
    _cache_sweep(device).zero_()
    start.record()
    action()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end) / 1e3


@cache
def _cache_sweep(device: torch.device) -> Tensor:
    return torch.empty(2**28, dtype=torch.uint8, device=device)


_REPORTED_PACKAGES = ("torch", "triton", "trifast", "cuequivariance_torch", "numpy")


@dataclass(frozen=True, kw_only=True)
class BenchmarkDevice:
    """A device with its best rates.

    `versions` has the versions of packages by name. `threads` is the number of PyTorch's threads, and `allocator` a
    phrase on how the CPU's allocator treats freed memory. `product` has the FLOPs per second of a large matrix product
    by dtype, and `peak` of float32 multiply-adds in registers, if it was measured. `copy` is the number of bytes, read
    plus written, per second of a large copy.
    """

    device: torch.device
    name: str
    threads: int
    versions: dict[str, str]
    load: float  # load average of the last minute
    allocator: str
    product: dict[torch.dtype, float] = field(default_factory=dict)
    peak: float | None = None
    copy: float = 1.0

    def lines(self) -> list[str]:
        """Return three lines of text: device, threads and load; versions and allocator; best rates."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        rates = ", ".join(
            f"{rate / 1e9:,.0f} GFLOP/s in products of {dtype_name(dtype)}" for dtype, rate in self.product.items()
        )
        peak = "" if self.peak is None else f"{self.peak / 1e9:,.0f} GFLOP/s in multiply-adds of float32 in registers, "
        return [
            f"{self.name} ({self.device}), {self.threads} threads, load average {self.load:.2f}",
            f"{platform.system()}, {versions}; {self.allocator}",
            f"at best {peak}{rates}, {self.copy / 1e9:,.1f} GB/s read and written in copies",
        ]

    def to_dict(self) -> dict[str, object]:
        """Return all fields as a dict for JSON."""
        return {
            "device": str(self.device),
            "name": self.name,
            "threads": self.threads,
            "versions": self.versions,
            "load": self.load,
            "allocator": self.allocator,
            "product_flops": {dtype_name(dtype): rate for dtype, rate in self.product.items()},
            "peak_flops": self.peak,
            "copy_bytes": self.copy,
        }


def measured_device(device: torch.device, dtypes: Sequence[torch.dtype], repeats: int) -> BenchmarkDevice:
    """Measure the rates of a device, in each of these dtypes, and return them with its name, versions and load.

    `repeats` is the number of measurements of each rate.
    """
    reason = allocator.unsupported_reason()
    return BenchmarkDevice(
        device=device,
        name=device_name(device),
        threads=torch.get_num_threads(),
        versions={"Python": platform.python_version()}
        | {name: version for name in _REPORTED_PACKAGES if (version := package_version(name)) is not None},
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        allocator="freed memory is kept" if reason is None else f"default allocator: {reason}",
        product={dtype: product_rate(device, dtype, repeats) for dtype in dtypes},
        peak=peak_rate(device, repeats),
        copy=copy_rate(device, repeats),
    )


def product_rate(device: torch.device, dtype: torch.dtype, repeats: int) -> float:
    """Measure the FLOPs per second of a large matrix product: the median of `repeats` measurements.

    On a CPU, the faster of PyTorch's two libraries counts. The product is small if a large one would take minutes, for
    example in bfloat16 on processors without instructions for it.
    """
    rate = math.inf
    for size in (8192,) if device.type == "cuda" else (256, 2048):
        if 2 * size**3 / rate > _MAX_PRODUCT_SECONDS:
            break
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        ways = [partial(torch.matmul, a, b), partial(mapped, a, b)][: 2 if device.type == "cpu" else 1]
        rate = 2 * size**3 / min(median_seconds(way, device, repeats) for way in ways)
    return rate


def peak_rate(device: torch.device, repeats: int) -> float | None:
    """Measure the FLOPs per second of float32 multiply-adds in the registers of a CPU: the median of `repeats`.

    Return None for a GPU, and if loops cannot be compiled.
    """
    out = torch.empty(32 * torch.get_num_threads(), device=device)
    with loops_if_large(sys.maxsize):
        loops = compiled("peak", out)
    if loops is None or not loops.IS_SUPPORTED:
        return None
    return len(out) * float(loops.FLOPS) / median_seconds(partial(loops.multiply_add, out), device, repeats)


def copy_rate(device: torch.device, repeats: int) -> float:
    """Measure the bytes, read plus written, per second of a copy that is too large for the caches."""
    source = torch.ones(2**28 if device.type == "cuda" else 2**25, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_seconds(lambda: target.copy_(source), device, repeats)


# Column titles of the table of readings.
HEADER = (
    f"{'':22} {'by':28} {'ms':>10} {'GFLOP/s':>9} {'of best':>8} {'of peak':>8} {'GB/s':>8} {'of best':>8} {'MiB':>9} "
    f"{'faster':>7} {'memory':>7}"
)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work of a computation: FLOPs of its matrix products, and the minimum number of bytes to read and write.

    A zero means that the number is not known.
    """

    flops: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Costs of one computation done in several ways, by the names of the ways; `work` is the same for all of them.

    The other ways are compared with the way named "plain". `part` is the benchmark, such as "ops" or "block", and
    `name` describes the computation and its sizes.
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

        Rates are compared with the machine's best rates, and time and memory with the plain way.
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
                _number(row["share_of_peak"], "8.0%"),
                _number(row["gigabytes_per_second"], "8,.1f"),
                _number(row["share_of_copy"], "8.0%"),
                f"{cost.memory / 2**20:9,.1f}",
                _number(row["times_faster"], "6.2f") + ("x" if row["times_faster"] else " "),
                _number(row["memory_ratio"], "7.2f"),
            ]
            lines.append(" ".join([start, *numbers]))
        return lines + [f"  {note}" for note in self.notes]

    def row(self, by: str, machine: BenchmarkDevice) -> dict[str, Any]:
        """Return the costs of the way `by` as a dict for JSON, with its rates and comparisons.

        Rates are compared with the machine's best rates, and time and memory with the plain way. Unknown values are
        None.
        """
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
        peak = machine.peak if machine.peak is not None and self.dtype == torch.float32 else math.inf
        compared = plain is not None and plain.failure is None and cost.failure is None
        return row | {
            "flops": flops or None,
            "least_bytes": moved or None,
            "gflops": _finite(rate / 1e9),
            "share_of_product": _finite(rate / machine.product.get(self.dtype, math.inf)),
            "share_of_peak": _finite(rate / peak),
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
    """Measure the machine's rates, then print the readings that the function `readings` yields; return both.

    With `options.json`, all readings so far are also written to that file after each reading.
    """
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = pick_device(options.device)
    with keeping_freed_memory():
        machine = measured_device(device, [getattr(torch, name) for name in options.dtypes], options.repeats or 5)
        print("\n".join(machine.lines()))
        if options.neighbours:
            print(f"measured next to {options.neighbours} busy processes, except the rates above")
        print(f"\n{HEADER}")
        printed: list[Readings] = []
        with busy_neighbours(options.neighbours):
            for reading in readings(machine):
                if not printed or (printed[-1].name, printed[-1].dtype) != (reading.name, reading.dtype):
                    print(f"{reading.name}, {dtype_name(reading.dtype)}")
                print("\n".join(reading.lines(machine)), flush=True)
                printed.append(reading)
                rows = [each.row(by, machine) for each in printed for by in each.costs]
                table = {"machine": machine.to_dict(), "neighbours": options.neighbours, "readings": rows}
                write_json(options.json, table)
    if hasattr(os, "getloadavg"):
        print(f"load average at the end: {os.getloadavg()[0]:.2f}")
    return machine, printed


def write_json(path: Path | None, content: object) -> None:
    """Write content to a JSON file, if `path` is not None."""
    if path is not None:
        path.write_text(json.dumps(content, indent=1, default=str) + "\n")
