"""Every kernel gives the outputs and gradients of its reference at the sizes of a network, however tensors lie."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.ops.triangle import triangle_multiplication
from helixfold.ops.weights import TriangleOperandWeights
from tests.gpu.cases import CASES, FLOAT32_ALONE, REAL, SMALL, Size
from tests.gpu.devices import on_devices
from tests.ops.comparing import assert_as_near, assert_equal, results

pytest.importorskip("triton")
# A GPU adds up to a million terms in another order. Triton's interpreter cuts digits off where a GPU rounds.
# How near plain PyTorch comes in bfloat16 depends on the processor.
TOLERANCE = {"cpu": 2e-5, "cuda": 1e-4}
FLOOR = {"cpu": 2**-4, "cuda": 0.0}
# Enough residues for pair tensors of more than 2^31 elements, and enough sequences for alignments of as many.
LARGE = Size(residues=4100, rows=4100, sequences=2056)


# Without a GPU, tests/ops/triton compares every kernel with its reference, at more sizes.
CPU_MARKS = [pytest.mark.long]


def on_devices_as_tensors_lie(*, transposed_on_cpu: bool) -> list[Any]:
    """Parameters (device, size, transposed): both ways on a GPU. A CPU's interpreter takes long for each."""
    return [
        pytest.param(*given.values, transposed, id=f"{given.id}-{transposed}", marks=given.marks)
        for given in on_devices([SMALL], REAL, cpu_marks=CPU_MARKS)
        for transposed in (False, True)
        if given.values[0] != "cpu" or transposed == transposed_on_cpu
    ]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("device", "size", "transposed"), on_devices_as_tensors_lie(transposed_on_cpu=True))
def test_results_and_gradients_equal_the_reference(device: str, size: Size, transposed: bool, name: str) -> None:
    with torch.device(device):
        arguments = CASES[name].make(size, transposed)
    CASES[name].skip_what_is_left_to_cublas(arguments)
    assert_equal(CASES[name].run, CASES[name].reference, arguments, TOLERANCE[device])


@pytest.mark.parametrize("name", [name for name in CASES if name not in FLOAT32_ALONE])
@pytest.mark.parametrize(("device", "size", "transposed"), on_devices_as_tensors_lie(transposed_on_cpu=False))
def test_bfloat16_is_as_near_as_plain_bfloat16(device: str, size: Size, transposed: bool, name: str) -> None:
    with torch.device(device):
        arguments = CASES[name].make(size, transposed)
    assert_as_near(CASES[name].run, CASES[name].reference, arguments, FLOOR[device])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.by_rows])
@pytest.mark.parametrize(("device", "size"), on_devices([SMALL], [LARGE], cpu_marks=CPU_MARKS))
def test_the_last_rows_of_a_large_tensor_are_right(device: str, size: Size, name: str) -> None:
    """Offsets of elements that 32 bits do not hold; the reference computes the last rows alone."""
    case = CASES[name]
    with torch.device(device):
        whole = in_bfloat16(case.make(size, True))
    rows = whole[case.by_rows[0]].shape[1]
    last = [
        each[:, -2:].detach().requires_grad_(each.requires_grad) if number in case.by_rows else each
        for number, each in enumerate(whole)
    ]
    counts = [each.numel() for each in whole if isinstance(each, Tensor)]

    def last_rows(*arguments: Any) -> Tensor:
        found = case.run(*arguments)
        counts.append(found.numel())
        return found.narrow(case.row_dim, rows - 2, 2)

    # Since other rows of the result count for nothing, gradients of what all rows share are those of the last ones.
    found, *gradients = results(last_rows, whole, torch.bfloat16)
    assert device == "cpu" or max(counts) > 2**31
    plain, exact = (results(case.reference, last, dtype) for dtype in (torch.bfloat16, torch.float64))
    for ours, theirs, right in zip((found, *gradients), plain, exact, strict=True):
        end = ours if ours.shape == right.shape else ours[:, -2:]
        allowed = max(2 * distance(theirs, right), FLOOR[device] * float(right.norm()), 1e-6)
        assert distance(end, right) <= allowed


@pytest.mark.parametrize(("device", "size"), on_devices([SMALL], [LARGE]))
def test_a_large_triangle_update_gives_what_its_two_halves_give(device: str, size: Size) -> None:
    with torch.device(device), torch.no_grad():
        pair, mask, right, right_gate, weights = CASES["triangle update"].make(size, False)
        pair = pair.bfloat16()
        found = CASES["triangle update"].run(pair, mask, right, right_gate, weights)
        other = CASES["triangle operand"].run(pair, mask, TriangleOperandWeights(weights.norm_in, right, right_gate))
        last = triangle_multiplication(pair[:, -2:], mask[:, -2:], other, weights)
    assert distance(found[:, -2:], last.double()) <= 2**-6 * float(last.double().norm())


def in_bfloat16(given: list[Any]) -> list[Any]:
    """The arguments with activations in bfloat16, one by one so that memory suffices."""
    made = []
    for number in range(len(given)):
        argument, given[number] = given[number], None
        if isinstance(argument, Tensor) and argument.requires_grad:
            argument = argument.detach().bfloat16().requires_grad_()
        made.append(argument)
    return made


def distance(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm())
