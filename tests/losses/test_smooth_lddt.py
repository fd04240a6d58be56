"""The smooth lDDT rises and falls with lDDT, and its slope leads where lDDT is better."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from data_pipeline.residues import ATOM_ORDER
from helixfold.losses.heads import lddt_ca, smooth_lddt_loss
from helixfold.losses.labels import Labels
from tests.losses.chains import a_motion, labels_of, moved, random_structure, residue_types

CA = ATOM_ORDER["CA"]
BEST = 1 - torch.sigmoid(torch.tensor([0.5, 1.0, 2.0, 4.0])).mean()


def frames_at(points: Tensor) -> Tensor:
    """Backbone frames (l b r 7) without a turn, at these places."""
    return torch.cat([torch.tensor([1.0, 0, 0, 0]).expand(*points.shape[:-1], 4), points], -1)


def labels_at(points: Tensor, mask: Tensor | None = None) -> Labels:
    """Labels of chains whose C-alphas (b r 3) lie there."""
    aatype = residue_types("A" * points.shape[1])
    labels = labels_of(random_structure(aatype), aatype)
    positions, present = labels.all_atom_positions.clone(), labels.all_atom_mask.clone()
    positions[..., CA, :] = points
    present[..., CA] = 1 if mask is None else mask
    return replace(labels, all_atom_positions=positions, all_atom_mask=present)


@pytest.mark.parametrize(
    ("distance", "off"),
    [(9.0, 0.0), (9.0, 0.4), (9.0, 1.5), (9.0, -3.0), (9.0, 20.0), (14.9, 1.0)],
)
def test_one_distance_counts_by_four_logistic_functions(distance: float, off: float) -> None:
    truth, found = torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)
    truth[0, 1, 1], found[0, 1, 2] = distance, distance + off
    kept = sum(1 / (1 + torch.tensor(abs(off) - limit).exp()) for limit in (0.5, 1.0, 2.0, 4.0)) / 4
    torch.testing.assert_close(smooth_lddt_loss(frames_at(found[None]), labels_at(truth)), 1 - kept[None])


def test_only_neighbours_and_observed_residues_count() -> None:
    truth = torch.zeros(1, 4, 3)
    truth[0, :, 0] = torch.tensor([0.0, 4.0, 8.0, 100.0])
    found = truth.clone()
    found[0, 1] += 50  # not observed
    found[0, 3] += 50  # without neighbours within 15 Angstrom
    loss = smooth_lddt_loss(frames_at(found[None]), labels_at(truth, torch.tensor([[1.0, 0, 1, 1]])))
    torch.testing.assert_close(loss, BEST[None])
    nothing = smooth_lddt_loss(frames_at(found[None]), labels_at(truth, torch.zeros(1, 4)))
    assert nothing.tolist() == [0]


def test_it_does_not_ask_where_a_structure_lies_and_averages_iterations() -> None:
    truth = 6 * torch.randn(1, 20, 3, generator=torch.Generator().manual_seed(0))
    elsewhere, wrong = moved(truth, a_motion()), truth.flip(1)
    labels = labels_at(truth)
    right = smooth_lddt_loss(frames_at(elsewhere[None]), labels)
    torch.testing.assert_close(right, BEST[None], atol=1e-4, rtol=0)
    both = smooth_lddt_loss(frames_at(torch.stack([elsewhere, wrong])), labels)
    torch.testing.assert_close(both, (right + smooth_lddt_loss(frames_at(wrong[None]), labels)) / 2)
    assert both > right + 0.05


def test_walking_down_its_slope_raises_lddt() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = 6 * torch.randn(1, 20, 3, generator=generator)
    points = truth + 1.5 * torch.randn(1, 20, 3, generator=generator)
    labels, everywhere = labels_at(truth), torch.ones(1, 20)
    before = lddt_ca(points, truth, everywhere).mean()
    found = points.clone().requires_grad_()
    walk = torch.optim.Adam([found], lr=0.1)
    for _ in range(50):
        walk.zero_grad()
        smooth_lddt_loss(frames_at(found[None]), labels).sum().backward()
        walk.step()
    assert before < 0.6
    assert lddt_ca(found.detach(), truth, everywhere).mean() > 0.9


def test_coinciding_atoms_have_a_gradient() -> None:
    found = torch.zeros(1, 1, 3, 3, requires_grad=True)
    truth = torch.tensor([[[0.0, 0, 0], [4, 0, 0], [8, 0, 0]]])
    smooth_lddt_loss(frames_at(found), labels_at(truth)).sum().backward()
    assert found.grad is not None
    assert found.grad.isfinite().all()
