"""`helixfold benchmark ops`: every operator at its shapes in a block, by every backend and installed peer."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Protocol

import torch
from torch import Tensor

from helixfold.cli.benchmark_machine import Machine
from helixfold.cli.benchmark_peers import absent, peers_of
from helixfold.cli.benchmark_table import PLAIN, Readings
from helixfold.cli.benchmark_timing import measure
from helixfold.cli.op_cases import OpCase, Shape, op_cases
from helixfold.cli.sizes import positive
from helixfold.ops.card import card_of
from helixfold.ops.dispatch import forced
from helixfold.presets import PRESETS

# Of a peer's output from the plain one's, beyond which it computed something else.
_ALLOWED_DEVIATION = 0.05


class _Computation(Protocol):
    """Something with outputs and what gradients are asked for: a case, or a peer that does it."""

    def __call__(self) -> list[Tensor]: ...
    def leaves(self) -> list[Tensor]: ...


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", choices=list(PRESETS), default="model_1", help="whose channels and heads")
    parser.add_argument("--residues", type=positive, nargs="+", default=[256])
    parser.add_argument("--rows", type=positive, default=128, help="of the MSA")
    parser.add_argument("--extra-rows", type=positive, default=1024, help="of the extra MSA")
    parser.add_argument("--only", default="", metavar="WORDS", help="operators whose name has these words")
    parser.set_defaults(repeats=7)


def readings(options: argparse.Namespace, machine: Machine) -> Iterator[Readings]:
    """All cases in every dtype, forward, then forward and backward."""
    for sentence in absent(machine.device):
        print(f"no peer: {sentence}")
    for dtype in options.dtypes:
        for residues in options.residues:
            shape = Shape(
                preset=options.preset,
                residues=residues,
                rows=options.rows,
                extra_rows=options.extra_rows,
                dtype=getattr(torch, dtype),
            )
            for case, counted in zip(op_cases(shape, machine.device), op_cases(shape, "meta"), strict=True):
                if options.only in case.name:
                    yield from _of_case(case, counted, shape, device=machine.device, repeats=options.repeats)


def _of_case(case: OpCase, counted: OpCase, shape: Shape, *, device: torch.device, repeats: int) -> Iterator[Readings]:
    for passes, gradients in (("forward", False), ("forward and backward", True)):
        if gradients and case.in_place:
            continue
        with torch.set_grad_enabled(gradients):
            ways, notes = _ways(case, device, gradients=gradients)
            yield Readings(
                part="ops",
                name=f"{case.name}, {shape.residues} residues",
                dtype=shape.dtype,
                passes=passes,
                costs=measure(ways, device, repeats),
                work=counted.work(gradients=gradients),
                notes=tuple(notes),
            )


def _ways(case: OpCase, device: torch.device, *, gradients: bool) -> tuple[dict[str, Callable[[], object]], list[str]]:
    """The plain reference, what is chosen, every other backend that can, and peers; and what is odd about a peer."""
    refused = [op.refusals(card_of(device), *arguments) for op, arguments in case.calls]
    chosen = [next(name for name, reason in reasons.items() if reason is None) for reasons in refused]
    ways: dict[str, Callable[[], object]] = {
        PLAIN: _way(case, "reference", gradients=gradients),
        f"ours ({', '.join(dict.fromkeys(chosen))})": _way(case, None, gradients=gradients),
    }
    for name in case.backends:
        able = any(reasons.get(name, "it has none") is None for reasons in refused)
        if able and name != "reference" and any(name not in (first, "") for first in chosen):
            ways[name] = _way(case, name, gradients=gradients)
    notes = []
    for package, peer in peers_of(case, device).items():
        ways[package] = _way(peer, None, gradients=gradients)
        if not gradients and (deviation := _deviation(case, peer)) > _ALLOWED_DEVIATION:
            notes.append(f"{package} computes something else: it is off by {deviation:.0%} of the largest value")
    return ways, notes


def _way(computation: _Computation, backend: str | None, *, gradients: bool) -> Callable[[], object]:
    incoming: list[Tensor] = []

    def run() -> object:
        with forced(backend) if backend is not None else nullcontext():
            outputs = computation()
            if not gradients:
                return outputs
            incoming.extend(torch.ones_like(each) for each in outputs[len(incoming) :])
            return torch.autograd.grad(outputs, computation.leaves(), incoming)

    return run


def _deviation(case: OpCase, peer: _Computation) -> float:
    """How far a peer's outputs are from the plain ones; 0 where it cannot run, which its reading says."""
    try:
        found = peer()[0].float()
    except Exception:  # as in `measure`
        return 0.0
    with forced("reference"):
        plain = case()[-1].float()
    return float((found - plain).abs().max() / plain.abs().max())
