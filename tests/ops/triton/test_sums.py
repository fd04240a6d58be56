"""The parts of gradients are summed and given back in the shapes and dtypes of the parameters."""

import pytest
import torch

pytest.importorskip("triton")

from helixfold.ops.triton.sums import summed
from tests.ops.comparing import DEVICE


@pytest.mark.parametrize("parts", [1, 5, 64, 150])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_are_summed_and_split(parts: int, dtype: torch.dtype) -> None:
    given = torch.randn(parts, 3 * 7 + 40, device=DEVICE)
    weight, bias = torch.empty(3, 7, dtype=dtype), torch.empty(40)
    found = summed(given, weight, bias)
    assert [(each.shape, each.dtype) for each in found] == [((3, 7), dtype), ((40,), torch.float32)]
    expected = given.sum(0)
    torch.testing.assert_close(found[0], expected[:21].view(3, 7).to(dtype))
    torch.testing.assert_close(found[1], expected[21:])
