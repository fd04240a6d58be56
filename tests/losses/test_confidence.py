"""Confidences are scored on how good the prediction is, and leave the prediction alone."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from data_pipeline.residues import ATOM_ORDER
from helixfold.losses.heads import (
    aligned_error_loss,
    experimentally_resolved_loss,
    has_resolution,
    lddt_ca,
    lddt_loss,
)
from helixfold.model.geometry.rigid import Rigid, rigid_from_tensor
from tests.losses.chains import a_motion, labels_of, moved, random_structure, residue_types

CA = ATOM_ORDER["CA"]


def certain(places: Tensor, bins: int) -> Tensor:
    """Logits that are sure of these bins."""
    return 50 * torch.nn.functional.one_hot(places, bins).float()


def test_lddt_counts_distances_kept_within_four_limits() -> None:
    line = torch.zeros(1, 4, 3)
    line[0, :, 0] = torch.tensor([0.0, 4.0, 8.0, 100.0])
    found = line.clone()
    found[0, 1, 0] += 1.5  # off to either neighbour by 1.5: within 2 and 4 of the four limits
    score = lddt_ca(found, line, torch.ones(1, 4))
    # The last has no neighbour within 15 Angstrom.
    torch.testing.assert_close(score, torch.tensor([[0.75, 0.5, 0.75, 1.0]]))
    without_first = lddt_ca(found, line, torch.tensor([[0.0, 1, 1, 1]]))
    torch.testing.assert_close(without_first[:, 1:], torch.tensor([[0.5, 0.5, 1.0]]))


@pytest.mark.parametrize(
    ("distance", "off", "score"),
    [
        *((9.0, 0.4, 1), (9.0, 0.6, 0.75), (9.0, 1.1, 0.5), (9.0, 2.1, 0.25), (9.0, 3.9, 0.25), (9.0, 4.1, 0)),
        *((14.9, 9.0, 0), (15.1, 9.0, 1)),  # beyond 15 Angstrom a distance does not count
    ],
)
def test_lddt_of_one_distance(distance: float, off: float, score: float) -> None:
    truth, found = torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)
    truth[0, 1, 1], found[0, 1, 2] = distance, distance + off
    torch.testing.assert_close(lddt_ca(found, truth, torch.ones(1, 2)), torch.full((1, 2), float(score)))


def test_lddt_does_not_ask_where_a_structure_lies() -> None:
    points, truth = torch.randn(2, 20, 3) * 8, torch.randn(2, 20, 3) * 8
    torch.testing.assert_close(lddt_ca(moved(truth, a_motion()), truth, torch.ones(2, 20)), torch.ones(2, 20))
    expected = lddt_ca(points, truth, torch.ones(2, 20))
    torch.testing.assert_close(lddt_ca(moved(points, a_motion()), truth, torch.ones(2, 20)), expected)
    assert (expected < 0.9).any()


@pytest.mark.parametrize(("off", "place"), [(0.0, 49), (1.5, 25), (3.0, 12), (9.0, 0)])
def test_plddt_is_asked_for_the_bin_of_the_lddt(off: float, place: int) -> None:
    aatype = residue_types("AG")
    truth = random_structure(aatype, layers=1, spread=2)
    labels = labels_of(truth, aatype)
    positions = truth.positions.clone()
    apart = positions[0, 1, CA] - positions[0, 0, CA]
    positions[0, 1, CA] += off * apart / apart.norm()
    assert lddt_loss(certain(torch.tensor([[place, place]]), 50), positions, labels) < 1e-6
    assert lddt_loss(certain(torch.tensor([[place, place ^ 1]]), 50), positions, labels) > 20


def test_plddt_counts_observed_residues_only() -> None:
    aatype = residue_types("AGW")
    truth = random_structure(aatype, layers=1)
    observed = torch.ones_like(truth.mask)
    observed[:, 2, CA] = 0
    logits = certain(torch.tensor([[49, 49, 0]]), 50)
    assert lddt_loss(logits, truth.positions, labels_of(truth, aatype, observed)) < 1e-6
    assert lddt_loss(logits, truth.positions, labels_of(truth, aatype)) > 10


def frames_along_x(*places: float) -> Tensor:
    frames = torch.zeros(1, len(places), 7)
    frames[..., 0], frames[..., 4] = 1, torch.tensor(places)
    return frames


@pytest.mark.parametrize(("off", "place"), [(0.0, 0), (0.4, 1), (0.6, 2), (30.9, 62), (31.1, 63), (400.0, 63)])
def test_aligned_errors_are_asked_for_in_their_bins(off: float, place: int) -> None:
    found, truth = frames_along_x(0, 5 + off), rigid_from_tensor(frames_along_x(0, 5))
    places = torch.tensor([[[0, place], [place, 0]]])
    assert aligned_error_loss(certain(places, 64), found, truth, torch.ones(1, 2)) < 1e-6


def test_aligned_errors_are_of_a_point_in_a_frame_in_that_order() -> None:
    # The second frame is turned by half: it alone sees the first residue elsewhere.
    found = frames_along_x(0, 5)
    found[0, 1, :4] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    truth = rigid_from_tensor(frames_along_x(0, 5))
    places = torch.tensor([[[0, 0], [20, 0]]])  # 10 Angstrom off
    assert aligned_error_loss(certain(places, 64), found, truth, torch.ones(1, 2)) < 1e-6


def test_an_aligned_error_in_ones_own_frame_is_zero_far_from_the_origin() -> None:
    aatype = residue_types("AGWKLMNP")
    frames = random_structure(aatype, layers=1, spread=200).frames[-1]
    rigid = rigid_from_tensor(random_structure(aatype, 1, layers=1, spread=200).frames[-1])
    diagonal = torch.eye(8)[None, ..., None] * certain(torch.zeros(1, 8, 8, dtype=torch.int64), 64)
    everything = aligned_error_loss(diagonal, frames, rigid, torch.ones(1, 8))
    torch.testing.assert_close(everything, torch.tensor([56 / 64 * math.log(64)]))


def test_pairs_without_a_true_frame_do_not_count() -> None:
    found = frames_along_x(0, 5, 50)
    truth = rigid_from_tensor(frames_along_x(0, 5, 9))
    logits = torch.randn(1, 3, 3, 64)
    alone = Rigid(rotation=truth.rotation[:, :2], translation=truth.translation[:, :2])
    expected = aligned_error_loss(logits[:, :2, :2], found[:, :2], alone, torch.ones(1, 2))
    torch.testing.assert_close(aligned_error_loss(logits, found, truth, torch.tensor([[1.0, 1, 0]])), expected)


def test_the_structure_gets_no_gradient_from_confidences() -> None:
    aatype = residue_types("AGW")
    structure, truth = random_structure(aatype), random_structure(aatype, 1)
    positions, frames = structure.positions.requires_grad_(), structure.frames[-1].clone().requires_grad_()
    lddt, errors = torch.randn(1, 3, 50, requires_grad=True), torch.randn(1, 3, 3, 64, requires_grad=True)
    loss = lddt_loss(lddt, positions, labels_of(truth, aatype)) + aligned_error_loss(
        errors, frames, rigid_from_tensor(truth.frames[-1]), torch.ones(1, 3)
    )
    loss.sum().backward()
    assert positions.grad is None
    assert frames.grad is None
    assert lddt.grad is not None
    assert errors.grad is not None


def test_atoms_are_resolved_or_not() -> None:
    aatype = residue_types("GA")
    truth = random_structure(aatype, layers=1)
    observed = torch.ones_like(truth.mask)
    observed[:, 1, ATOM_ORDER["CB"]] = 0
    labels = labels_of(truth, aatype, observed)
    assert labels.atom37_atom_exists.sum() == 4 + 5
    logits = torch.zeros(1, 2, 37)
    torch.testing.assert_close(experimentally_resolved_loss(logits, labels), torch.tensor([math.log(2)]))
    logits[0, 1, ATOM_ORDER["CB"]] = -50
    torch.testing.assert_close(experimentally_resolved_loss(logits, labels), torch.tensor([8 / 9 * math.log(2)]))
    logits[0, 0, ATOM_ORDER["CB"]] = 50  # glycine has none
    torch.testing.assert_close(experimentally_resolved_loss(logits, labels), torch.tensor([8 / 9 * math.log(2)]))


def test_only_sharp_experiments_teach_confidence() -> None:
    aatype = residue_types("G").expand(7, -1)
    labels = labels_of(random_structure(aatype), aatype)
    labels = replace(labels, resolution=torch.tensor([0.0, 0.09, 0.1, 0.5, 2.0, 3.0, 3.1]))
    assert has_resolution(labels, 0.1, 3.0).tolist() == [False, False, True, True, True, True, False]
