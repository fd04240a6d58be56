"""Backends are chosen in their order, refuse with a reason, and can be forced."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties
from helixfold.ops.dispatch import (
    Backend,
    Op,
    add_recorded_backends,
    forced,
    intercepted,
    operator,
    recorded,
    recorded_backends,
    wants_gradient,
)
from helixfold.ops.residual import Residual, added


def _unsupported_reason(properties: DeviceProperties, x: Tensor) -> str | None:
    return None if x.ndim == 1 else f"{x.ndim} dimensions"


@operator(
    Backend(name="device", kinds=("cuda",), run="tests.ops.test_dispatch:minus"),
    Backend(name="flat", unsupported_reason=_unsupported_reason, run=lambda x: 0 - x),
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
    assert negative.unsupported_reasons(DEVICE_MODELS["cpu"], shape) == {
        "device": "for cuda, not cpu",
        "flat": "2 dimensions",
        "reference": None,
    }
    assert negative.unsupported_reasons(DEVICE_MODELS["h100"], shape)["device"] is None


def test_a_forced_backend_is_used_where_it_can_be() -> None:
    with forced("reference") as used:
        assert negative.choice(torch.ones(2)).name == "reference"
        negative(torch.ones(2))
    assert used == {"negative": 1}
    with forced("flat") as used:
        assert negative.choice(torch.ones(2, 2)).name == "reference"
        negative(torch.ones(2, 2))
    assert not used
    with forced("device"):
        assert negative.choice(torch.ones(2)).name == "device"
        with forced("reference"):
            pass
        assert negative.choice(torch.ones(2)).name == "device"
    assert negative.choice(torch.ones(2)).name == "flat"


def test_the_backends_that_compute_are_recorded() -> None:
    with recorded_backends() as used:
        doubled(torch.ones(2))
        with recorded_backends() as others:
            negative(torch.ones(2, 2))
        with pytest.raises(RuntimeError), recorded_backends():
            raise RuntimeError("fails")
        negative(torch.ones(2))
        negative.choice(torch.ones(2, 2))  # which computes nothing
        add_recorded_backends({"negative": ["flat", "replayed"], "others": ["replayed"]})
    negative(torch.ones(2, 2))
    add_recorded_backends({"negative": ["late"]})
    replayed = {"negative": {"flat", "replayed"}, "others": {"replayed"}}
    assert (used, others) == ({"doubled": {"both"}} | replayed, {"negative": {"reference"}})


def test_gradients_are_wanted_of_what_requires_them() -> None:
    x = torch.ones(2, requires_grad=True)
    assert wants_gradient(None, x)
    assert not wants_gradient(None, x.detach())
    with torch.no_grad():
        assert not wants_gradient(x)


def doubled_if_small(residual: Residual, x: Tensor) -> Tensor | None:
    return residual.stream + 2 * x if x.numel() < 3 else None


@operator(Backend(name="both", run=lambda x: 2 * x, run_adding=doubled_if_small))
def doubled(x: Tensor) -> Tensor:
    """Return twice the tensor."""
    return 2 * x


@pytest.mark.parametrize("size", [2, 3])
def test_a_backend_adds_its_result_to_a_stream_or_leaves_that_to_the_addition(size: int) -> None:
    x, stream = torch.arange(1.0, size + 1).view(1, 1, 1, size), torch.ones(1, 1, 1, size)
    assert added(None, doubled, x).equal(2 * x)
    with recorded() as calls, recorded_backends() as used:
        assert added(Residual(stream), doubled, x).equal(stream + 2 * x)
    others = [] if size == 2 else ["add_change"]
    assert [op.name for op, _ in calls] == ["doubled", *others]
    assert used == {"doubled": {"both"}} | {name: {"reference"} for name in others}


def test_nothing_is_added_by_a_backend_where_the_addition_or_the_operator_is_asked_to_do_otherwise() -> None:
    x = stream = torch.ones(1, 1, 1, 2)
    mask = torch.full_like(x, 0.5)
    for names in (None, ["add_change"], ["doubled"]):
        with forced("reference", names), recorded() as calls:
            assert added(Residual(stream, mask), doubled, x).flatten().tolist() == [2, 2]
        assert [op.name for op, _ in calls] == ["doubled", "add_change"]
    with forced("both", ["doubled"]), recorded() as calls:
        assert added(Residual(stream), doubled, x).flatten().tolist() == [3, 3]
    assert [op.name for op, _ in calls] == ["doubled"]
    seen = []

    def carry_out(op: Op[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.append(op.name)
        return op.run(*args, **kwargs)

    with intercepted(carry_out):
        assert added(Residual(stream), doubled, x).flatten().tolist() == [3, 3]
    assert seen == ["doubled", "add_change"]
