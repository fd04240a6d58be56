"""`helixfold benchmark`: speed and memory on this machine, beside what the machine can do and beside peers."""

import argparse
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from helixfold.benchmark.machine import Machine, look_at
from helixfold.benchmark.table import HEADER, Readings, write_json
from helixfold.execution.allocator import freed_memory_kept
from helixfold.execution.device import pick_device
from helixfold.predict.sizes import positive

DTYPES = ("float32", "bfloat16")
# Parts whose readings have one form: a module with `add_options` and `readings`.
MEASURED = {
    "ops": "every operator at its shapes in a block, by every backend and installed peer",
    "block": "one Evoformer block: forward, then forward and backward",
    "model": "one pass of the whole network, and of DeepMind's program",
    "step": "one training step: forward, backward, optimizer",
}
# Parts with a table of their own: a module with `add_options`, which says what to run.
OTHERS = {
    "memory": "peak memory of predictions by executor, beside the floor and what is predicted",
    "data": "chains per second and size of a feature store, built and read",
    "loader": "training examples a second, from a store and from the files that it was made of",
    "recompute": "memory of a training pass by what is recomputed",
    "layouts": "a training step by how ranks are divided, beside what the planner predicts",
    "optimizer": "a step of the optimizer, beside PyTorch's Adam, clipping and moving average by tensor",
}
# What `all` changes on a GPU: the sizes at which kernels are compared.
_ON_A_GPU = {"ops": ["--residues", "256", "512", "1024"]}


class _PartParser(argparse.ArgumentParser):
    """A part's parser, which imports the part when that is asked for: the first four need little more than torch."""

    def __init__(self, *, part: str = "", **settings: Any) -> None:
        super().__init__(**settings, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        self.part = part

    def parse_known_args(self, *arguments: Any, **settings: Any) -> Any:
        if self.part in MEASURED or self.part == "all":
            _add_common_options(self)
            self.set_defaults(run=_measure, part=self.part)
        if self.part != "all":
            _module(self.part).add_options(self)
        return super().parse_known_args(*arguments, **settings)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe `helixfold benchmark` to the command line."""
    parser = commands.add_parser("benchmark", help="speed and memory of the network and of training")
    parts = parser.add_subparsers(
        title="what to measure", required=True, metavar="PART", parser_class=_PartParser
    )  # fmt: skip
    for name, summary in (MEASURED | {"all": ", ".join(MEASURED)} | OTHERS).items():
        parts.add_parser(name, help=summary, part=name)


def _module(part: str) -> Any:
    return importlib.import_module(f"helixfold.benchmark.{part}")


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=positive, metavar="N", help="readings, of which the median counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured there, too")


def _measure(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    device = pick_device(options.device)
    with freed_memory_kept():
        machine = look_at(device, [getattr(torch, name) for name in options.dtypes], options.repeats or 5)
        print("\n".join(machine.lines()))
        print(f"\n{HEADER}")
        found: list[Readings] = []
        for each in _readings(options, machine):
            if not found or (found[-1].name, found[-1].dtype) != (each.name, each.dtype):
                print(f"{each.name}, {str(each.dtype).removeprefix('torch.')}")
            print("\n".join(each.lines(machine)), flush=True)
            found.append(each)
            if options.json is not None:
                write_json(options.json, machine, found)
    if hasattr(os, "getloadavg"):
        print(f"load average when it ended: {os.getloadavg()[0]:.2f}")


def _readings(options: argparse.Namespace, machine: Machine) -> Iterator[Readings]:
    if options.part != "all":
        yield from _module(options.part).readings(options, machine)
        return
    common = ["--device", options.device, "--threads", str(options.threads), "--dtypes", *options.dtypes]
    common += [] if options.repeats is None else ["--repeats", str(options.repeats)]
    for part in MEASURED:
        sizes = _ON_A_GPU.get(part, []) if machine.device.type == "cuda" else []
        yield from _module(part).readings(_PartParser(part=part).parse_args(common + sizes), machine)
