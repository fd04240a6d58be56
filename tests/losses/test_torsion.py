"""Torsions are compared as angles on the circle, and half turns that nobody can see are free."""

from dataclasses import replace

import pytest
import torch

from data_pipeline.residues import CHI_PI_PERIODIC, RESTYPES
from helixfold.losses.torsion import angle_norm_loss, torsion_loss
from helixfold.model.geometry.torsions import Torsions, torsions_from_atom37
from tests.losses.chains import labels_of, random_structure, residue_types

FIRST_CHI = 3


def torsions_of(seed: int = 0, sequence: str = RESTYPES) -> Torsions:
    aatype = residue_types(sequence)
    labels = labels_of(random_structure(aatype, seed), aatype)
    return torsions_from_atom37(aatype, labels.all_atom_positions, labels.all_atom_mask)


def test_the_true_angles_have_no_error_whatever_the_backbones_are() -> None:
    truth = torsions_of()
    found = truth.sin_cos.repeat(3, 1, 1, 1, 1)
    found[..., :FIRST_CHI, :] = torch.randn_like(found[..., :FIRST_CHI, :])
    assert torsion_loss(found, truth) < 1e-10


def test_half_a_turn_counts_unless_nobody_can_see_it() -> None:
    truth = torsions_of()
    for place in range(20):
        for chi in range(4):
            found = truth.sin_cos[None].clone()
            found[..., place, FIRST_CHI + chi, :] *= -1
            # A chord of 2, squared, over all chi angles.
            counts = truth.mask[0, place, FIRST_CHI + chi] and not CHI_PI_PERIODIC[place, chi]
            expected = 4 / truth.mask[..., FIRST_CHI:].sum() if counts else torch.tensor(0.0)
            torch.testing.assert_close(torsion_loss(found, truth)[0], expected, atol=1e-6, rtol=1e-5)


def test_the_error_is_the_mean_over_iterations_and_observed_angles() -> None:
    truth = torsions_of(sequence="KC")
    truth = replace(truth, mask=truth.mask * torch.tensor([1.0, 1, 1, 1, 0, 1, 0]))
    quarter = torch.stack([truth.sin_cos[..., 1], -truth.sin_cos[..., 0]], -1)
    found = torch.stack([truth.sin_cos, truth.sin_cos])
    found[0, :, 0, 3], found[1, :, 0, 4] = quarter[:, 0, 3], quarter[:, 0, 4]
    # Lysine's chi1 and chi3 and cysteine's chi1 count; one is off by a chord of sqrt 2 in one of two iterations.
    torch.testing.assert_close(torsion_loss(found, truth), torch.tensor([2 / 3 / 2]))


def test_each_iteration_chooses_the_nearer_of_two_symmetric_angles() -> None:
    truth = torsions_of(sequence="FD")
    found = torch.stack([truth.sin_cos, truth.alternative_sin_cos])
    assert not torch.equal(found[0], found[1])
    assert torsion_loss(found, truth) < 1e-10


def test_no_observed_angle_gives_no_error() -> None:
    truth = torsions_of(sequence="GA")
    found = torch.randn(2, 1, 2, 7, 2, requires_grad=True)
    error = torsion_loss(found, truth)
    error.sum().backward()
    assert error == 0
    assert found.grad is not None
    assert not found.grad.any()


def test_lengths_are_drawn_to_one() -> None:
    vectors = torch.zeros(2, 2, 3, 7, 2)
    vectors[:, 0, :, :, 0], vectors[:, 1, :, :, 1] = 1.5, -0.5
    mask = torch.tensor([[1.0, 1, 0], [1, 1, 1]])
    torch.testing.assert_close(angle_norm_loss(vectors, mask), torch.tensor([0.5, 0.5]), rtol=1e-5, atol=0)
    vectors[0, 0, 0, 0, 0] = 2.5
    torch.testing.assert_close(angle_norm_loss(vectors, mask)[0], torch.tensor(0.5 + 1 / 28), rtol=1e-5, atol=0)
    vectors[0, 0, 2] = 100
    torch.testing.assert_close(angle_norm_loss(vectors, mask)[0], torch.tensor(0.5 + 1 / 28), rtol=1e-5, atol=0)


@pytest.mark.parametrize("length", [0.0, 1.0])
def test_gradients_of_lengths_are_finite(length: float) -> None:
    vectors = torch.full((1, 1, 2, 7, 2), length).requires_grad_()
    angle_norm_loss(vectors, torch.ones(1, 2)).sum().backward()
    assert vectors.grad is not None
    assert torch.isfinite(vectors.grad).all()


def test_gradients_are_those_of_finite_differences() -> None:
    truth = torsions_of(sequence="FKDE")
    truth = Torsions(
        sin_cos=truth.sin_cos.double(),
        alternative_sin_cos=truth.alternative_sin_cos.double(),
        mask=truth.mask.double(),
    )
    found = torch.randn(2, 1, 4, 7, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: torsion_loss(x, truth), (found,))
    assert torch.autograd.gradcheck(lambda x: angle_norm_loss(x, torch.ones(1, 4).double()), (found,))
