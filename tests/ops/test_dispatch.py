"""Backends are chosen in their order, refuse with a reason, and can be forced."""

import torch
from torch import Tensor

from helixfold.ops.card import CARDS, Card
from helixfold.ops.dispatch import Backend, forced, operator, recorded_backends, wants_gradient


def _refusal(card: Card, x: Tensor) -> str | None:
    return None if x.ndim == 1 else f"{x.ndim} dimensions"


@operator(
    Backend(name="device", kinds=("cuda",), run="tests.ops.test_dispatch:minus"),
    Backend(name="flat", refusal=_refusal, run=lambda x: 0 - x),
)
def negative(x: Tensor) -> Tensor:
    """Change all signs."""
    return torch.neg(x)


def minus(x: Tensor) -> Tensor:
    return -x


def test_the_first_backend_that_can_is_used() -> None:
    assert negative.choice(torch.ones(2)).name == "flat"
    assert negative.choice(torch.ones(2, 2)).name == "reference"
    assert (negative(torch.ones(2)) == -1).all()


def test_a_backend_says_why_it_refuses() -> None:
    shape = torch.empty(2, 2, device="meta")
    assert negative.refusals(CARDS["cpu"], shape) == {
        "device": "for cuda, not cpu",
        "flat": "2 dimensions",
        "reference": None,
    }
    assert negative.refusals(CARDS["h100"], shape)["device"] is None


def test_a_forced_backend_is_used_where_it_can_be() -> None:
    with forced("reference") as used:
        assert negative.choice(torch.ones(2)).name == "reference"
    assert used == {"negative": 1}
    with forced("flat") as used:
        assert negative.choice(torch.ones(2, 2)).name == "reference"
    assert not used
    with forced("device"):
        assert negative.choice(torch.ones(2)).name == "device"
        with forced("reference"):
            pass
        assert negative.choice(torch.ones(2)).name == "device"
    assert negative.choice(torch.ones(2)).name == "flat"


def test_the_backends_that_compute_are_recorded() -> None:
    with recorded_backends() as used:
        negative(torch.ones(2))
        with recorded_backends() as others:
            negative(torch.ones(2, 2))
        negative.choice(torch.ones(2, 2))  # which computes nothing
    negative(torch.ones(2, 2))
    assert (used, others) == ({"negative": {"flat"}}, {"negative": {"reference"}})


def test_gradients_are_wanted_of_what_requires_them() -> None:
    x = torch.ones(2, requires_grad=True)
    assert wants_gradient(None, x)
    assert not wants_gradient(None, x.detach())
    with torch.no_grad():
        assert not wants_gradient(x)
