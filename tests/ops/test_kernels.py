"""Every Triton kernel gives what the reference gives for inputs of a few tiles.

Without a GPU the kernels run in Triton's interpreter. The tests in ops/triton, which take minutes, compare more sizes
and bfloat16.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from helixfold.ops.attention import attention
from helixfold.ops.dispatch import Op, forced
from helixfold.ops.linear import layer_norm, norm_linear
from helixfold.ops.outer_product import outer_product_mean, outer_product_operands
from helixfold.ops.residual import Residual, add_change, added, residual_norm
from helixfold.ops.self_attention import self_attention
from helixfold.ops.structure.point_attention import point_attention
from helixfold.ops.structure.update_frames import update_frames
from helixfold.ops.transition import transition
from helixfold.ops.triangle import triangle_multiplication, triangle_operand, triangle_update
from helixfold.ops.triton.sums import summed
from tests.ops.comparing import affine, assert_equal, mask, norm
from tests.ops.point_arguments import point_arguments
from tests.ops.triton import (
    test_aligned_errors,
    test_attention,
    test_fused_adam,
    test_layer_norm,
    test_norm_linear,
    test_observed_geometry,
    test_outer_product,
    test_point_attention,
    test_residual,
    test_residual_norm,
    test_self_attention,
    test_transition,
    test_triangle,
    test_update_frames,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def by_triton(op: Op[Any, Any]) -> Callable[..., Any]:
    """The operator, which must be computed by Triton."""

    def run(*given: Any) -> Any:
        with forced("triton") as used:
            found = op(*given)
        assert used == {op.name: 1}
        return found

    return run


def adding(op: Op[Any, Tensor], kept: Tensor | None) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The operator with an addition to its first argument, by Triton and by the references."""

    def ours(stream: Tensor, *rest: Any) -> Tensor:
        with forced("triton") as used:
            found = added(Residual(stream, kept), op, stream, *rest)
        assert used == {op.name: 1}
        return found

    def reference(stream: Tensor, *rest: Any) -> Tensor:
        mask = None if kept is None else kept.to(stream.dtype)
        return add_change.reference(stream, op.reference(stream, *rest), mask)

    return ours, reference


Case = tuple[Callable[..., Any], Callable[..., Any], Any]
CASES: dict[str, Callable[[], Case]] = {
    "attention": lambda: (
        test_attention.by_triton,
        attention.reference,
        test_attention.inputs(1, 1, 1, 18, 130, 8),
    ),
    "self_attention": lambda: (
        test_self_attention.by_triton,
        self_attention.reference,
        test_self_attention.arguments(2, 3, 17, turned=True),
    ),
    "triangle_operand": lambda: (
        test_triangle.by_triton(triangle_operand),
        triangle_operand.reference,
        test_triangle.for_operand(2, 2, 35, 16, 16, turned=True),
    ),
    "triangle_multiplication": lambda: (
        test_triangle.by_triton(triangle_multiplication),
        triangle_multiplication.reference,
        test_triangle.for_multiplication(2, 2, 35, 16, 16),
    ),
    "triangle_update, added": lambda: (
        *adding(triangle_update, torch.nn.functional.dropout(torch.ones(2, 1, 6, 16), 0.25)),
        test_triangle.for_update(2, 6, 16, 16),
    ),
    "transition": lambda: (
        test_transition.by_triton,
        transition.reference,
        test_transition.inputs(2, 5, 17, 32, factor=4, turned=True),
    ),
    "transition, added": lambda: (
        *adding(transition, None),
        test_transition.inputs(1, 3, 5, 32, factor=2),
    ),
    "outer_product_mean": lambda: (
        test_outer_product.by_triton,
        outer_product_mean.reference,
        test_outer_product.inputs(2, 17, 3, 7, 8, 8, 32),
    ),
    "norm_linear": lambda: (
        test_norm_linear.by_triton,
        norm_linear.reference,
        test_norm_linear.arguments(2, 7, 35, c_in=64, c_out=13, turned=True),
    ),
    "outer_product_operands": lambda: (
        by_triton(outer_product_operands),
        outer_product_operands.reference,
        [torch.randn(2, 5, 19, 64).requires_grad_(), mask(2, 5, 19), norm(64), affine(13, 64), affine(13, 64)],
    ),
    "layer_norm": lambda: (
        test_layer_norm.by_triton,
        layer_norm.reference,
        (test_layer_norm.activations(2, 9, 33, 32, turned=True), norm(32)),
    ),
    "add_change": lambda: (
        test_residual.by_triton,
        test_residual.reference,
        test_residual.inputs((2, 35, 5, 24), 2),
    ),
    "residual_norm": lambda: (
        test_residual_norm.by_triton,
        residual_norm.reference,
        test_residual_norm.arguments(2, 7, 63, dropout=True),
    ),
    "point_attention": lambda: (
        test_point_attention.by_triton,
        point_attention.reference,
        point_arguments(5, slice(1, 4), b=2),
    ),
    "update_frames": lambda: (
        test_update_frames.by_triton,
        update_frames.reference,
        test_update_frames.arguments(2, 17),
    ),
}


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of gradients are of several programs and of several blocks of rows."""
    monkeypatch.setattr("helixfold.ops.triton.layer_norm._PROGRAMS", 3)
    monkeypatch.setattr("helixfold.ops.triton.outer_product_backward._PROGRAMS", 3)
    monkeypatch.setattr("helixfold.ops.triton.transition._BYTES", 2 * 128 * 4 * 64)


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_equal_the_reference(name: str) -> None:
    with torch.device(DEVICE):
        run, reference, given = CASES[name]()
        assert_equal(run, reference, given, 5e-5)


def test_errors_of_aligned_points_equal_the_reference() -> None:
    test_aligned_errors.test_the_sum_and_its_gradients_equal_the_references(3, 7, 33)


def test_adam_equals_the_reference() -> None:
    test_fused_adam.test_the_kernel_equals_the_reference(test_fused_adam.kernel.__wrapped__(), 33, 31, False)


def test_observed_geometry_equals_the_reference() -> None:
    test_observed_geometry.test_groups_and_chis_of_all_residue_types_equal_the_references()


def test_sums_of_parts_equal_those_of_pytorch() -> None:
    parts = torch.randn(70, 3 * 7 + 40, device=DEVICE)
    found = summed(parts, torch.empty(3, 7), torch.empty(40))
    torch.testing.assert_close(torch.cat([each.flatten() for each in found]), parts.sum(0))
