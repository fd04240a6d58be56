"""Backends are chosen in their order, refuse with a reason, and can be forced."""

import torch
from torch import Tensor

from helixfold.ops.dispatch import Backend, Op, forced, wants_gradient


def _refusal(x: Tensor) -> str | None:
    return None if x.ndim == 1 else f"{x.ndim} dimensions"


OP = Op(
    "negative",
    Backend(name="device", devices=("cuda",), run=lambda x: -x),
    Backend(name="flat", refusal=_refusal, run=lambda x: 0 - x),
    Backend(name="reference", run=torch.neg),
)


def test_the_first_backend_that_can_is_used() -> None:
    assert OP.choice(torch.ones(2)).name == "flat"
    assert OP.choice(torch.ones(2, 2)).name == "reference"
    assert (OP(torch.ones(2)) == -1).all()


def test_a_backend_says_why_it_refuses() -> None:
    shape = torch.empty(2, 2, device="meta")
    assert OP.refusals("cpu", shape) == {"device": "for cuda, not cpu", "flat": "2 dimensions", "reference": None}
    assert OP.refusals("cuda", shape)["device"] is None


def test_a_forced_backend_is_used_where_it_can_be() -> None:
    with forced("reference") as used:
        assert OP.choice(torch.ones(2)).name == "reference"
    assert used == {"negative": 1}
    with forced("flat") as used:
        assert OP.choice(torch.ones(2, 2)).name == "reference"
    assert not used
    with forced("device"):
        assert OP.choice(torch.ones(2)).name == "device"
        with forced("reference"):
            pass
        assert OP.choice(torch.ones(2)).name == "device"
    assert OP.choice(torch.ones(2)).name == "flat"


def test_gradients_are_wanted_of_what_requires_them() -> None:
    x = torch.ones(2, requires_grad=True)
    assert wants_gradient(None, x)
    assert not wants_gradient(None, x.detach())
    with torch.no_grad():
        assert not wants_gradient(x)
