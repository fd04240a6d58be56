"""On meta tensors, where a CPU is described, operators allocate what they would on a CPU, and compute nothing."""

from contextlib import nullcontext

import pytest
import torch

from helixfold.benchmark.op_cases import Shape, op_cases
from helixfold.ops.device_properties import DEVICE_MODELS, is_simulated, simulated_device
from helixfold.ops.linear import linear
from helixfold.ops.look_up import look_up
from helixfold.ops.weights import Affine
from tests.ops.metering import metered, with_some_masked

# PyTorch's layer norm in bfloat16 keeps its statistics in bfloat16 on a CPU, and in float32 on meta tensors.
STATISTICS = "layer norm of the pair"


def assert_alike(dtype: torch.dtype, *, gradients: bool, tolerance: float) -> None:
    shape = Shape(preset="tiny", residues=24, rows=8, extra_rows=10, dtype=dtype)
    for real, meta in zip(op_cases(shape, "cpu"), op_cases(shape, "meta"), strict=True):
        if gradients and real.in_place:
            continue
        allowed = 0.1 if real.name == STATISTICS and dtype == torch.bfloat16 else tolerance
        expected = metered(with_some_masked(real), nullcontext(), gradients=gradients)
        found = metered(meta, simulated_device(DEVICE_MODELS["cpu"]), gradients=gradients)
        assert found.results == expected.results, real.name
        assert found.live == pytest.approx(expected.live, rel=allowed), real.name
        assert found.peak == pytest.approx(expected.peak, rel=allowed), real.name


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.long)])
@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "both passes"])
def test_bytes_and_results_are_those_of_real_tensors(dtype: torch.dtype, gradients: bool) -> None:
    assert_alike(dtype, gradients=gradients, tolerance=1e-5)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "gradients", [pytest.param(False, id="forward", marks=pytest.mark.long), pytest.param(True, id="both passes")]
)
def test_two_blocks_of_many_tell_what_all_of_them_take(gradients: bool) -> None:
    # Blocks that differ by a row make their memory anew; meta tensors have the longest alone.
    assert_alike(torch.float32, gradients=gradients, tolerance=0.05)


def test_tables_are_looked_up_on_meta_tensors() -> None:
    table = torch.empty(5, 3, device="meta", requires_grad=True)
    found = look_up(table, torch.empty(1, 4, 4, dtype=torch.int64, device="meta"))
    assert torch.autograd.grad(found, table, torch.empty_like(found))[0].shape == (5, 3)


def test_real_tensors_are_refused_where_nothing_would_be_computed() -> None:
    x, weights = torch.ones(2, 3), Affine(torch.ones(4, 3))
    with simulated_device(DEVICE_MODELS["cpu"]), pytest.raises(ValueError, match="linear needs tensors on meta"):
        linear(x, weights)
    assert not is_simulated()
    assert (linear(x, weights) == 3).all()
