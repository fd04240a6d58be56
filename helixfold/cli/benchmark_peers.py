"""Operators of other packages that do what ours do, where these are installed: trifast and cuEquivariance."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from helixfold.cli.op_cases import INCOMING, OUTGOING, TRIANGLE_CORE, OpCase

PACKAGES = {"trifast": "triangle attention", "cuequivariance_torch": "triangle attention and multiplication"}


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A call of a peer's operator, and what gradients are asked for: its own copies of the case's arguments."""

    run: Callable[[], Tensor]
    arguments: tuple[Tensor, ...]

    def __call__(self) -> list[Tensor]:
        return [self.run()]

    def leaves(self) -> list[Tensor]:
        return list(self.arguments)


def absent(device: torch.device) -> list[str]:
    """Why a peer is not measured, a sentence for each."""
    if device.type != "cuda":
        return [f"{package} ({what}) is for GPUs" for package, what in PACKAGES.items()]
    return [f"{package} ({what}) is not installed" for package, what in PACKAGES.items() if find_spec(package) is None]


def peers_of(case: OpCase, device: torch.device) -> dict[str, Peer]:
    """The peers that can do this case, by the names of their packages."""
    there = [package for package in PACKAGES if device.type == "cuda" and find_spec(package) is not None]
    makers = {
        ("trifast", TRIANGLE_CORE): _trifast_attention,
        ("cuequivariance_torch", TRIANGLE_CORE): _cuequivariance_attention,
        ("cuequivariance_torch", OUTGOING): _cuequivariance_multiplication,
        ("cuequivariance_torch", INCOMING): _cuequivariance_multiplication,
    }
    return {package: makers[package, case.name](case) for package in there if (package, case.name) in makers}


def _trifast_attention(case: OpCase) -> Peer:
    from trifast import triangle_attention  # noqa: PLC0415 (where it is installed)

    query, key, value, mask, bias = case.calls[0][1]
    # Its heads come before rows, and its mask says what to leave out.
    turned = [each.detach().transpose(1, 2).contiguous().requires_grad_() for each in (query, key, value)]
    hidden = mask == 0

    return Peer(run=lambda: triangle_attention(*turned, bias, hidden).transpose(1, 2), arguments=(*turned, bias))


def _cuequivariance_attention(case: OpCase) -> Peer:
    from cuequivariance_torch import triangle_attention  # noqa: PLC0415 (where it is installed)

    query, key, value, mask, bias = case.calls[0][1]
    real = (mask > 0)[:, :, None, None]
    return Peer(
        run=lambda: triangle_attention(query, key, value, bias[:, None], real), arguments=(query, key, value, bias)
    )


def _cuequivariance_multiplication(case: OpCase) -> Peer:
    from cuequivariance_torch import triangle_multiplicative_update  # noqa: PLC0415 (where it is installed)

    (_, operand), (_, last) = case.calls
    pair, mask, (_, right, right_gate) = operand
    norm, left, left_gate, norm_out, out, gate = last[-1]
    turn = case.name == INCOMING
    pair, mask = ((each.transpose(1, 2) if turn else each).detach().contiguous() for each in (pair, mask))
    dtype = pair.dtype

    def joined(first: Any, second: Any) -> list[Tensor]:
        return [torch.cat(both).detach().to(dtype).requires_grad_() for both in zip(first, second, strict=True)]

    def alone(affine: Any) -> list[Tensor]:
        return [each.detach().to(dtype).requires_grad_() for each in affine]

    pair.requires_grad_()
    names = ("norm_in", "p_in", "g_in", "norm_out", "p_out", "g_out")
    given = (alone(norm), joined(left, right), joined(left_gate, right_gate), alone(norm_out), alone(out), alone(gate))
    parameters = {
        f"{name}_{kind}": tensor
        for name, both in zip(names, given, strict=True)
        for kind, tensor in zip(("weight", "bias"), both, strict=True)
    }
    direction = "incoming" if turn else "outgoing"

    def run() -> Tensor:
        found = triangle_multiplicative_update(pair, direction=direction, mask=mask, **parameters)
        return found.transpose(1, 2) if turn else found

    return Peer(run=run, arguments=(pair, *parameters.values()))
