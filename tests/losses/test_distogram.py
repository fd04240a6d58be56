"""The distogram is scored by the bin that each true distance falls in."""

import math

import pytest
import torch

from helixfold.losses.heads import distogram_loss


@pytest.mark.parametrize(
    ("distance", "place"), [(0.0, 0), (2.31, 0), (2.32, 1), (2.62, 1), (2.63, 2), (21.68, 62), (21.69, 63), (300.0, 63)]
)
def test_a_distance_is_in_the_bin_between_its_edges(distance: float, place: int) -> None:
    positions = torch.tensor([[[1.0, 2.0, 3.0], [1.0, 2.0, 3.0 + distance]]])
    logits = torch.zeros(1, 2, 2, 64)
    logits[:, 0, 1, place] = logits[:, 1, 0, place] = logits[:, [0, 1], [0, 1], 0] = 40
    assert distogram_loss(logits, positions, torch.ones(1, 2)) < 1e-6


def test_knowing_nothing_costs_the_logarithm_of_the_bins() -> None:
    found = distogram_loss(torch.zeros(2, 5, 5, 64), torch.randn(2, 5, 3) * 10, torch.ones(2, 5))
    torch.testing.assert_close(found, torch.full((2,), math.log(64)))


def test_only_pairs_of_observed_residues_count() -> None:
    mask = torch.tensor([[1.0, 0, 1, 1]])
    logits, positions = torch.randn(1, 4, 4, 64), torch.randn(1, 4, 3) * 5
    kept = mask[0].bool()
    expected = distogram_loss(logits[:, kept][:, :, kept], positions[:, kept], torch.ones(1, 3))
    torch.testing.assert_close(distogram_loss(logits, positions, mask), expected)


def test_nothing_observed_gives_no_error_and_no_gradient() -> None:
    logits = torch.randn(1, 3, 3, 64, requires_grad=True)
    found = distogram_loss(logits, torch.zeros(1, 3, 3), torch.zeros(1, 3))
    found.sum().backward()
    assert found == 0
    assert logits.grad is not None
    assert not logits.grad.any()
