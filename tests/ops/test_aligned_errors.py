"""Exact points count the minimum error of DeepMind's programs: 0.01 Å for chains and 0.0001 Å for complexes."""

import pytest
import torch

from helixfold.ops.structure.aligned_errors import ChainPairs, aligned_errors

CHAINS = torch.tensor([[1, 1, 2]])


@pytest.mark.parametrize(
    ("pairs", "least", "count"),
    [
        (None, 1e-2, 9),
        (ChainPairs(frames=CHAINS, points=CHAINS, within=True), 1e-4, 5),
        (ChainPairs(frames=CHAINS, points=CHAINS, within=False), 1e-4, 4),
    ],
)
def test_an_exact_pair_counts_the_minimum_error(pairs: ChainPairs | None, least: float, count: int) -> None:
    points, mask = torch.randn(1, 3, 7, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    total, *gradients = aligned_errors(
        torch.zeros(1, 3, 3, 7, dtype=torch.float64), points, mask, mask, torch.full((1,), 10.0).double(), pairs=pairs
    )
    assert float(total) == pytest.approx(count * least)
    assert not gradients[1].any()
