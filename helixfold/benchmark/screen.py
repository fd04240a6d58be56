"""Print the readings of a benchmark as they are made, beside the machine's best rates."""

import os
from collections.abc import Callable, Iterator

import torch

from helixfold.benchmark.machine import BenchmarkDevice, measured_device
from helixfold.benchmark.options import CommonOptions
from helixfold.benchmark.table import HEADER, Readings, write_json
from helixfold.execution.allocator import keeping_freed_memory
from helixfold.execution.device import pick_device
from helixfold.planning.size import dtype_name


def show(readings: Callable[[BenchmarkDevice], Iterator[Readings]], options: CommonOptions) -> None:
    """Measure the machine, then print readings as the function `readings` yields them for it.

    With `options.json`, all readings are also written to that file, again after each of them.
    """
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = pick_device(options.device)
    with keeping_freed_memory():
        machine = measured_device(device, [getattr(torch, name) for name in options.dtypes], options.repeats or 5)
        print("\n".join(machine.lines()))
        print(f"\n{HEADER}")
        made: list[Readings] = []
        for reading in readings(machine):
            if not made or (made[-1].name, made[-1].dtype) != (reading.name, reading.dtype):
                print(f"{reading.name}, {dtype_name(reading.dtype)}")
            print("\n".join(reading.lines(machine)), flush=True)
            made.append(reading)
            if options.json is not None:
                write_json(options.json, machine, made)
    if hasattr(os, "getloadavg"):
        print(f"load average when it ended: {os.getloadavg()[0]:.2f}")
