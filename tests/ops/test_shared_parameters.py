"""Parameters that are used several times get the gradients that autograd would add up."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from helixfold.benchmark.passes import META, OperatorLog
from helixfold.ops import shared_parameters
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.linear import linear
from helixfold.ops.shared_parameters import LinearUse, copies, linear_once, linear_uses
from helixfold.ops.weights import Affine

COUNT, B, R, C = 3, 2, 5, 4


class Blocked(torch.autograd.Function):
    """The identity, which passes no gradient on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_parameters, "properties_of", lambda _: DEVICE_MODELS["h100"])


def parameters(*, bias: bool = True, learns: bool = True) -> Affine:
    weight, offset = (torch.randn(*shape, dtype=torch.float64, requires_grad=learns) for shape in ((C, C), (C,)))
    return Affine(weight, offset if bias else None)


def chained(x: Tensor, uses: list[LinearUse]) -> Tensor:
    for use in uses:
        x = linear_once(x, use).tanh()
    return x


def gradients(output: Tensor, leaves: list[Tensor | None]) -> list[Tensor]:
    return [*torch.autograd.grad(output.square().sum(), [each for each in leaves if each is not None])]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("recomputes", [False, True])
def test_gradients_are_those_of_one_map_used_several_times(bias: bool, recomputes: bool) -> None:
    given, x = parameters(bias=bias), torch.randn(B, R, C, dtype=torch.float64, requires_grad=True)
    uses, plain = linear_uses(given, COUNT, B * R), [LinearUse(given)] * COUNT
    found = checkpoint(chained, x, uses, use_reentrant=False) if recomputes else chained(x, uses)
    expected = chained(x, plain)
    assert torch.equal(found, expected)
    for ours, right in zip(gradients(found, [x, *given]), gradients(expected, [x, *given]), strict=True):
        torch.testing.assert_close(ours, right)


def test_uses_that_were_not_made_count_for_nothing() -> None:
    given, x = parameters(), torch.randn(B * R, C, dtype=torch.float64)
    uses = linear_uses(given, COUNT, B * R)
    found = gradients(linear_once(x, uses[1]), [*given])
    for ours, right in zip(found, gradients(linear(x, given), [*given]), strict=True):
        torch.testing.assert_close(ours, right)
    blocked = Blocked.apply(linear_once(x, linear_uses(given, 1, B * R)[0])).sum()
    assert torch.autograd.grad(blocked, [*given], allow_unused=True) == (None, None)


def test_gradients_of_the_input_alone_leave_nothing_behind() -> None:
    given, x = parameters(), torch.randn(B * R, C, dtype=torch.float64, requires_grad=True)
    output = chained(x, linear_uses(given, COUNT, B * R)).square().sum()
    first = torch.autograd.grad(output, [x, *given], retain_graph=True)
    torch.autograd.grad(output, x, retain_graph=True)
    assert all(map(torch.equal, torch.autograd.grad(output, [x, *given]), first))


def test_parameters_that_learn_nothing_are_used_as_they_are() -> None:
    given = parameters(learns=False)
    assert all(use.parameters is given and use.inputs is None for use in linear_uses(given, COUNT, R))
    assert all(each is given for each in copies(given, COUNT))


def test_autograd_adds_up_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_parameters, "properties_of", lambda _: DEVICE_MODELS["cpu"])
    given = parameters()
    assert all(use.parameters is given for use in linear_uses(given, COUNT, R))


def test_copies_add_up_their_gradients() -> None:
    given = parameters()
    made = copies(given, COUNT)
    output = sum((index + 1) * (each.weight.sum() + each.bias.sum()) for index, each in enumerate(made))
    for found in torch.autograd.grad(output, given):
        assert torch.equal(found, torch.full_like(found, 6))


def test_all_uses_cost_one_product_and_no_addition() -> None:
    with META:
        given, x = Affine(torch.empty(C, C, requires_grad=True)), torch.empty(R, C, requires_grad=True)
    output = chained(x, linear_uses(given, COUNT, R))
    with OperatorLog() as log:
        torch.autograd.grad(output, [x, given.weight], torch.empty_like(output))
    names = [call.name for call in log.calls]
    assert names.count("mm") == COUNT + 1
    assert "add" not in names
