"""Parameters that need no gradient get none and cost nothing, and the gradients of the others do not change."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helixfold.benchmark.launches import counted
from helixfold.benchmark.op_cases import OpCase, Shape, op_cases
from helixfold.benchmark.passes import Part
from helixfold.execution.nested import tensors, with_tensors_changed
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.dispatch import forced
from tests.ops.comparing import poisoned

Learns = Callable[[Tensor], bool]
CHOICES: dict[str, Learns] = {
    "nothing": lambda _: False,
    "weights": lambda parameter: parameter.ndim == 2,
    "norms and biases": lambda parameter: parameter.ndim == 1,
    "maps to more channels": lambda parameter: parameter.ndim == 2 and len(parameter) > parameter.shape[1],
}
# Operators with parameters that have kernels, and the launches of a backward pass on an H200: if every parameter
# learns, and by each of the choices.
LAUNCHES = {
    "MSA row attention": (11, 8, 10, 9, 9),
    "triangle attention, starting node": (12, 9, 11, 10, 10),
    "MSA transition": (8, 4, 6, 6, 5),
    "outer product mean": (5, 3, 5, 5, 3),
    "norm and maps of the outer product": (2, 1, 2, 2, 1),
    "triangle multiplication, outgoing": (7, 4, 6, 5, 4),
    "layer norm of the pair": (2, 1, 1, 2, 1),
}


def frozen(case: OpCase, learns: Learns, dtype: torch.dtype = torch.float32) -> OpCase:
    """The case with parameters of this dtype, of which only those that learn need gradients; streams always do."""

    def changed(parameter: Tensor) -> Tensor:
        return parameter.detach().to(dtype).requires_grad_(parameter.requires_grad and learns(parameter))

    calls = tuple(
        (op, tuple(with_tensors_changed(changed, each) if isinstance(each, tuple) else each for each in arguments))
        for op, arguments in case.calls
    )
    return OpCase(name=case.name, calls=calls, in_place=case.in_place)


def gradients(case: OpCase, backend: str) -> list[Tensor | None]:
    with forced(backend), poisoned():
        outputs = case()
        generator = torch.Generator().manual_seed(1)
        weights = [torch.randn(each.shape, generator=generator, dtype=each.dtype) for each in outputs]
        leaves = [each for _, arguments in case.calls for each in tensors(arguments)]
        for leaf in leaves:
            leaf.grad = None
        torch.autograd.backward(outputs, weights)
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize(
    ("backend", "choices"),
    [
        pytest.param("rows", [*CHOICES], id="rows"),
        pytest.param("triton", ["nothing", "maps to more channels"], id="triton"),
        pytest.param("triton", ["weights", "norms and biases"], id="triton, other choices", marks=pytest.mark.long),
    ],
)
def test_frozen_parameters_get_no_gradient_and_the_others_get_the_same(backend: str, choices: list[str]) -> None:
    if backend == "triton":
        pytest.importorskip("triton")
    compared: Counter[str] = Counter()
    for case in op_cases(Shape(preset="tiny", residues=5, rows=2, extra_rows=2), "cpu"):
        operators = [op for op, _ in case.calls]
        has_parameters = any(isinstance(each, tuple) for _, arguments in case.calls for each in arguments)
        has_backend = all(backend in {each.name for each in op.backends} for op in operators)
        if case.in_place or not has_parameters or not has_backend or set(compared) >= {op.name for op in operators}:
            continue
        expected = gradients(frozen(case, lambda _: True), backend)
        for choice in choices:
            partly = frozen(case, CHOICES[choice])
            leaves = [each for _, arguments in partly.calls for each in tensors(arguments)]
            for leaf, ours, whole in zip(leaves, gradients(partly, backend), expected, strict=True):
                assert (ours is None) == (whole is None or not leaf.requires_grad), (case.name, choice)
                if ours is not None and whole is not None:
                    torch.testing.assert_close(ours, whole, rtol=1e-5, atol=1e-5 * float(whole.abs().max()))
        compared.update(op.name for op in operators)
    assert len(compared) > 5


def test_frozen_parameters_cost_no_launch() -> None:
    found = {}
    for case in op_cases(Shape(residues=64, rows=32, extra_rows=32, dtype=torch.bfloat16), "meta"):
        if case.name in LAUNCHES:
            cases = [frozen(case, learns, torch.bfloat16) for learns in (lambda _: True, *CHOICES.values())]
            counts = []
            for each in cases:
                part = Part(name=each.name, run=each, leaves=[leaf.requires_grad_() for leaf in each.leaves()])
                _, backward = counted(part, DEVICE_MODELS["h200"])
                counts.append(backward.kernels + backward.others)
            found[case.name] = tuple(counts)
    assert found == LAUNCHES
