"""Measure every operator at its shapes in the network by every backend and peer, for `helixfold benchmark ops`.

Peers are other packages with equivalent operators, the keys of `PACKAGES`.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from helixfold.benchmark.measurement import (
    PLAIN,
    BenchmarkDevice,
    Readings,
    measure,
    replayed,
    show,
)
from helixfold.benchmark.op_cases import INCOMING, OUTGOING, TRIANGLE_CORE, OpCase, Shape, op_cases
from helixfold.benchmark.options import CommonOptions, OpsOptions
from helixfold.ops.device_properties import properties_of
from helixfold.ops.dispatch import forced

# A larger deviation from the reference, relative to its largest value, means that a peer computes something else.
_ALLOWED_DEVIATION = 0.05
# Packages with operators that are equivalent to ours, and what they compute; measured on a GPU if they are installed.
PACKAGES = {"trifast": "triangle attention", "cuequivariance_torch": "triangle attention and multiplication"}


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A call of another package's operator on a case's arguments, in the layout and dtype that the package needs.

    `run` makes the call, and `arguments` are its tensors that require gradients.
    """

    run: Callable[[], Tensor]
    arguments: tuple[Tensor, ...]

    def __call__(self) -> list[Tensor]:
        """Make the call, and return its result in a list, like an `OpCase`."""
        return [self.run()]

    def leaves(self) -> list[Tensor]:
        """Return the arguments that require gradients."""
        return list(self.arguments)


def run(options: OpsOptions, common: CommonOptions) -> None:
    """Measure every operator, print the readings, and write them to the file of `common.json`, if it is set."""
    show(partial(readings, options, common), common)


def readings(options: OpsOptions, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield readings of the cases whose name contains `--only`, in every dtype and at each number of residues.

    Each case has a reading of the forward pass and, unless it works in place, of forward and backward pass. Peers that
    cannot be measured are printed first.
    """
    for reason in unmeasured_peers(machine.device):
        print(f"no peer: {reason}")
    for dtype in common.dtypes:
        for residues in options.residues:
            shape = Shape(
                preset=options.preset,
                residues=residues,
                rows=options.rows,
                extra_rows=options.extra_rows,
                dtype=getattr(torch, dtype),
            )
            for case, on_meta in zip(op_cases(shape, machine.device), op_cases(shape, "meta"), strict=True):
                if options.only in case.name:
                    yield from _of_case(case, on_meta, shape, device=machine.device, repeats=common.repeats or 7)


def _of_case(case: OpCase, on_meta: OpCase, shape: Shape, *, device: torch.device, repeats: int) -> Iterator[Readings]:
    for direction, gradients in (("forward", False), ("forward and backward", True)):
        if gradients and case.in_place:
            continue
        with torch.set_grad_enabled(gradients):
            ways, notes = _ways(case, device, gradients=gradients)
            yield Readings(
                part="ops",
                name=f"{case.name}, {shape.residues} residues",
                dtype=shape.dtype,
                passes=direction,
                costs=measure(ways, device, repeats),
                work=on_meta.work(gradients=gradients),
                notes=tuple(notes),
            )


def _ways(case: OpCase, device: torch.device, *, gradients: bool) -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """Return the ways to compute a case, by name, and notes on ways whose results differ.

    The ways are the plain reference, the default backend, every other backend that supports the case, and peers.
    """
    unsupported = [op.unsupported_reasons(properties_of(device), *arguments) for op, arguments in case.calls]
    defaults = [next(name for name, reason in reasons.items() if reason is None) for reasons in unsupported]
    ways: dict[str, Callable[[], Any]] = {
        PLAIN: _way(case, "reference", gradients=gradients),
        f"ours ({', '.join(dict.fromkeys(defaults))})": _way(case, None, gradients=gradients),
    }
    for name in dict.fromkeys(backend.name for op, _ in case.calls for backend in op.backends):
        is_supported = any(reasons.get(name, "it has none") is None for reasons in unsupported)
        if is_supported and name != "reference" and any(name not in (default, "") for default in defaults):
            ways[name] = _way(case, name, gradients=gradients)
    plain, ours, *_ = ways
    notes = []
    if device.type == "cuda":
        ways["ours, replayed"] = replayed(ways[ours], device)
    deviation = 0.0 if case.in_place else _deviation(ways[ours], ways[plain])
    if deviation > _ALLOWED_DEVIATION:
        # The reference in bfloat16 is not exact, because PyTorch sums the gradients of a norm's parameters in bfloat16.
        deviation = _deviation(ways[ours], _way(case.in_float32(), "reference", gradients=gradients))
    if deviation > _ALLOWED_DEVIATION:
        notes.append(f"{ours} computes something else: it is off by {deviation:.0%} of the largest value")
    for package, peer in peers_of(case, device).items():
        ways[package] = _way(peer, None, gradients=gradients)
        if not gradients and (deviation := _deviation(peer, lambda: ways[plain]()[-1:])) > _ALLOWED_DEVIATION:
            notes.append(f"{package} computes something else: it is off by {deviation:.0%} of the largest value")
    return ways, notes


def _way(computation: OpCase | Peer, backend: str | None, *, gradients: bool) -> Callable[[], Any]:
    incoming: list[Tensor] = []

    def run() -> object:
        with forced(backend) if backend is not None else nullcontext():
            outputs = computation()
            if not gradients:
                return outputs
            incoming.extend(torch.ones_like(each) for each in outputs[len(incoming) :])
            return torch.autograd.grad(outputs, computation.leaves(), incoming)

    return run


def _deviation(way: Callable[[], Any], plain: Callable[[], Any]) -> float:
    """Return the largest deviation of a way's results from the plain results, relative to the largest of all values.

    Gradients that consist only of rounding errors therefore do not count. Return 0 if one of the ways cannot run.
    """
    try:
        pairs = list(zip(way(), plain(), strict=True))
    except Exception:  # `measure` reports the error.
        return 0.0
    largest = max(float(right.abs().max()) for _, right in pairs)
    return max(float((result.float() - right.float()).abs().max()) for result, right in pairs) / max(largest, 1e-6)


def unmeasured_peers(device: torch.device) -> list[str]:
    """Return a phrase with the name and the reason for each peer that cannot be measured on this device."""
    if device.type != "cuda":
        return [f"{package} ({what}) is for GPUs" for package, what in PACKAGES.items()]
    return [f"{package} ({what}) is not installed" for package, what in PACKAGES.items() if find_spec(package) is None]


def peers_of(case: OpCase, device: torch.device) -> dict[str, Peer]:
    """Return the installed peers that implement this case, by package name; on a CPU there are none."""
    installed = [package for package in PACKAGES if device.type == "cuda" and find_spec(package) is not None]
    makers = {
        ("trifast", TRIANGLE_CORE): _trifast_attention,
        ("cuequivariance_torch", TRIANGLE_CORE): _cuequivariance_attention,
        ("cuequivariance_torch", OUTGOING): _cuequivariance_multiplication,
        ("cuequivariance_torch", INCOMING): _cuequivariance_multiplication,
    }
    return {package: makers[package, case.name](case) for package in installed if (package, case.name) in makers}


def _trifast_attention(case: OpCase) -> Peer:
    from trifast import triangle_attention  # noqa: PLC0415 (where it is installed)

    query, key, value, mask, bias = case.calls[0][1]
    # In trifast, heads come before rows, and the mask is True for pairs that are left out.
    transposed = [each.detach().transpose(1, 2).contiguous().requires_grad_() for each in (query, key, value)]
    excluded = mask == 0

    return Peer(
        run=lambda: triangle_attention(*transposed, bias, excluded).transpose(1, 2), arguments=(*transposed, bias)
    )


def _cuequivariance_attention(case: OpCase) -> Peer:
    from cuequivariance_torch import triangle_attention  # noqa: PLC0415 (where it is installed)

    query, key, value, mask, bias = case.calls[0][1]
    real = (mask > 0)[:, :, None, None]
    return Peer(
        run=lambda: triangle_attention(query, key, value, bias[:, None], real), arguments=(query, key, value, bias)
    )


def _cuequivariance_multiplication(case: OpCase) -> Peer:
    from cuequivariance_torch import triangle_multiplicative_update  # noqa: PLC0415 (where it is installed)

    ((_, (pair, mask, right, right_gate, (norm, left, left_gate, norm_out, out, gate))),) = case.calls
    is_incoming = case.name == INCOMING
    pair, mask = ((each.transpose(1, 2) if is_incoming else each).detach().contiguous() for each in (pair, mask))
    dtype = pair.dtype

    def joined(first: Any, second: Any) -> list[Tensor]:
        return [torch.cat(both).detach().to(dtype).requires_grad_() for both in zip(first, second, strict=True)]

    def single(affine: Any) -> list[Tensor]:
        return [each.detach().to(dtype).requires_grad_() for each in affine]

    pair.requires_grad_()
    names = ("norm_in", "p_in", "g_in", "norm_out", "p_out", "g_out")
    input_maps = (single(norm), joined(left, right), joined(left_gate, right_gate))
    maps = (*input_maps, single(norm_out), single(out), single(gate))
    parameters = {
        f"{name}_{kind}": tensor
        for name, both in zip(names, maps, strict=True)
        for kind, tensor in zip(("weight", "bias"), both, strict=True)
    }
    direction = "incoming" if is_incoming else "outgoing"

    def run() -> Tensor:
        update = triangle_multiplicative_update(pair, direction=direction, mask=mask, **parameters)
        return update.transpose(1, 2) if is_incoming else update

    return Peer(run=run, arguments=(pair, *parameters.values()))
