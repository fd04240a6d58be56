"""Chains that are predicted too near to each other cost as the paper says."""

from itertools import permutations

import pytest
import torch
from torch import Tensor

from data_pipeline.residues import ATOM_ORDER
from helixfold.losses.chain_metrics import centre_of_mass_loss
from helixfold.losses.labels import Labels
from tests.losses.complexes import a_complex, labels_of_complex, random_truth
from tests.losses.test_violations import holding

CA = ATOM_ORDER["CA"]


def plain(positions: Tensor, truth: Tensor, mask: Tensor, asym_id: Tensor) -> Tensor:
    """The loss of one complex, pair by pair of chains."""
    terms = []
    present = [n for n in asym_id.unique().tolist() if n and mask[asym_id == n, CA].any()]
    for one, other in permutations(present, 2):
        centres = [
            [points[(asym_id == n) & (mask[:, CA] > 0), CA].mean(0) for n in (one, other)]
            for points in (positions, truth)
        ]
        predicted, true = ((a - b).norm() for a, b in centres)
        terms.append(torch.clamp((predicted - true + 4) / 20, max=0) ** 2)
    return torch.stack(terms).mean() if terms else positions.sum() * 0


@pytest.mark.parametrize("chains", ["A", "AB", "ABAC", "AAAAA"])
def test_loss_and_gradient_equal_a_plain_loop(chains: str) -> None:
    batch = a_complex(chains, 20)
    truth, mask = (each.double() for each in random_truth(batch))
    if len(chains) > 3:
        mask[0, batch.asym_id[0] == 2] = 0  # a chain that was not observed
    labels = holding(Labels, all_atom_positions=truth, all_atom_mask=mask)
    positions = (truth * 0.3 + torch.randn(truth.shape)).requires_grad_()
    found = centre_of_mass_loss(positions, labels, batch.asym_id)
    expected = plain(positions[0], truth[0], mask[0], batch.asym_id[0])
    assert (found > 0).item() == (len(chains) > 1)
    torch.testing.assert_close(found[0], expected, rtol=1e-7, atol=1e-12)
    (ours,), (theirs,) = (torch.autograd.grad(loss.sum(), positions) for loss in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("nearer", "loss"), [(-50.0, 0.0), (3.9, 0.0), (14.0, 0.25)])
def test_chains_may_be_a_little_nearer_and_much_farther(nearer: float, loss: float) -> None:
    batch = a_complex("AB", 8)
    truth = torch.zeros(1, 8, 37, 3)
    truth[0, 4:, :, 0] = 30
    labels = holding(Labels, all_atom_positions=truth, all_atom_mask=torch.ones(1, 8, 37))
    found = centre_of_mass_loss(truth * (30 - nearer) / 30, labels, batch.asym_id)
    torch.testing.assert_close(found, torch.tensor([loss]))


def test_chains_on_top_of_each_other_have_a_finite_gradient() -> None:
    batch = a_complex("ABA")
    labels = labels_of_complex(batch, *random_truth(batch))
    positions = torch.zeros(1, 15, 37, 3, requires_grad=True)
    centre_of_mass_loss(positions, labels, batch.asym_id).sum().backward()
    assert positions.grad is not None
    assert torch.isfinite(positions.grad).all()
