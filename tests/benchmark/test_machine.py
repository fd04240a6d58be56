"""The rate of matrix products is measured on a large product, or on a small one on slow processors."""

from functools import partial

import pytest
import torch
from torch import Tensor

from helixfold.benchmark import machine
from helixfold.benchmark.machine import product_rate


@pytest.mark.parametrize(("rate", "sizes"), [(1e11, {256, 2048}), (1e9, {256})])
def test_a_large_product_is_not_measured_where_it_takes_long(
    rate: float, sizes: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set[int]()

    def seconds(way: partial[Tensor], device: torch.device, repeats: int) -> float:
        size = len(way.args[0])
        found.add(size)
        return 2 * size**3 / rate

    monkeypatch.setattr(machine, "median_seconds", seconds)
    assert product_rate(torch.device("cpu"), torch.bfloat16, 5) == pytest.approx(rate)
    assert found == sizes
