"""An update of a slab takes memory of the slab's size and not of the whole context's."""

import pytest
import torch

from helixfold.cli.benchmark_timing import peak_of
from helixfold.execution import allocator
from helixfold.model.outer_product_mean import OuterProductMean
from helixfold.model.triangle import TriangleAttention, TriangleMultiplication
from helixfold.model.update import Context, Update

CPU = torch.device("cpu")
MIB = 2**20
# What blocks that stay in the cache take, whatever the slab's size.
BLOCKS = 8 * MIB

pytestmark = pytest.mark.skipif(allocator.refusal() is not None, reason=str(allocator.refusal()))


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """For which the blocks are small."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def peak(update: Update, stream: torch.Tensor, context: Context, *aligned: torch.Tensor) -> int:
    """Of an update that has already been carried out once."""
    arguments = stream, torch.ones(stream.shape[:3], dtype=stream.dtype), context, *aligned
    with torch.no_grad():
        update(*arguments)
        return peak_of(lambda: update(*arguments), CPU)


def test_a_large_bias_in_bfloat16_is_not_copied() -> None:
    update = TriangleAttention(64, 8, "rows", 0.0)
    bias = torch.ones(1, 8, 1024, 1024, dtype=torch.bfloat16)
    assert bias.nbytes >= 2 * BLOCKS
    assert peak(update, torch.ones(1, 1, 1024, 64, dtype=torch.bfloat16), (bias,)) < BLOCKS


def test_the_right_half_of_outer_products_is_not_copied() -> None:
    update = OuterProductMean(8, 16, 32)
    columns, mask = torch.ones(1, 512, 256, 8), torch.ones(1, 512, 256)
    with torch.no_grad():
        context = update.context(columns, mask)
    assert context[0].nbytes >= 2 * BLOCKS
    assert peak(update, torch.ones(1, 1, 512, 16), context, columns[:, :1], mask[:, :1]) < BLOCKS


def test_triangle_multiplication_takes_no_more_than_its_workspace() -> None:
    update = TriangleMultiplication(64, 64, "rows", 0.0)
    right = torch.ones(1, 64, 256, 256)
    assert peak(update, torch.ones(1, 256, 256, 64), (right,)) < update.workspace(256, 64) * 256 * 4
