"""Print the readings of a benchmark as they are made, beside the machine's best rates, and write them as JSON."""

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from helixfold.benchmark.machine import BenchmarkDevice, measured_device
from helixfold.benchmark.op_cases import Work
from helixfold.benchmark.options import CommonOptions
from helixfold.benchmark.timing import PLAIN, Cost
from helixfold.execution.allocator import keeping_freed_memory
from helixfold.execution.device import pick_device
from helixfold.parallel.neighbours import busy_neighbours
from helixfold.planning.size import dtype_name

HEADER = (
    f"{'':22} {'by':28} {'ms':>10} {'GFLOP/s':>9} {'of best':>8} {'GB/s':>8} {'of best':>8} {'MiB':>9} "
    f"{'faster':>7} {'memory':>7}"
)


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
                if options.json is not None:
                    _write(options.json, machine, options.neighbours, made)
    if hasattr(os, "getloadavg"):
        print(f"load average when it ended: {os.getloadavg()[0]:.2f}")
    return machine, made


def _write(path: Path, machine: BenchmarkDevice, neighbours: int, made: Sequence[Readings]) -> None:
    rows = [each.row(by, machine) for each in made for by in each.costs]
    table = {"machine": machine.to_dict(), "neighbours": neighbours, "readings": rows}
    path.write_text(json.dumps(table, indent=1) + "\n")
