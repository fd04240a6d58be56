"""Chains from torsion angles: the helix that textbooks draw, and the angles that were asked for."""

import math

import pytest
import torch
from torch import Tensor

from data_pipeline.residues import RESTYPES
from helixfold.geometry.atoms import (
    atom14_from_rigid_groups,
    atom14_to_atom37,
    atom37_mask,
    rigid_groups_from_torsions,
)
from helixfold.geometry.torsions import torsions_from_atom37
from tests.examples.small.scripts import small_script

backbone_from_torsions = small_script("torsion_backbone").backbone_from_torsions


def chain(length: int, phi: float, psi: float) -> Tensor:
    """C-alpha atoms of an alanine chain, torsions in degrees."""
    angles = (torch.full((1, length), math.radians(angle), dtype=torch.float64) for angle in (phi, psi))
    positions: Tensor = backbone_from_torsions(torch.zeros(1, length, dtype=torch.int64), *angles).translation[0]
    return positions


def handedness(points: Tensor) -> float:
    """Positive for a right-handed turn of four neighbours."""
    steps = points.diff(dim=0)
    return float((torch.linalg.cross(steps[:-2], steps[1:-1]) * steps[2:]).sum(-1).mean())


def test_a_helix_rises_by_one_and_a_half_angstrom_and_turns_to_the_right() -> None:
    points = chain(37, -57.0, -47.0)
    # Eighteen residues make five turns, so that what is left of the difference is along the axis.
    assert float((points[18:36] - points[:18]).mean(0).norm()) / 18 == pytest.approx(1.5, abs=0.06)
    assert handedness(points) > 0
    assert handedness(chain(37, 57.0, 47.0)) < 0


def test_a_strand_is_extended() -> None:
    points = chain(20, -120.0, 130.0)
    assert float((points[2:] - points[:-2]).norm(dim=-1).mean()) / 2 == pytest.approx(3.3, abs=0.15)


def test_neighbours_are_as_far_apart_as_a_trans_peptide_bond_makes_them() -> None:
    steps = chain(12, -75.0, 145.0).diff(dim=0).norm(dim=-1)
    assert steps.tolist() == pytest.approx([3.80] * 11, abs=0.03)


def test_atoms_have_the_torsions_that_were_asked_for() -> None:
    torch.manual_seed(0)
    aatype = torch.arange(len(RESTYPES)).repeat(2, 1)
    phi, psi = ((torch.rand(aatype.shape, dtype=torch.float64) - 0.5) * 6 for _ in range(2))
    other = torch.zeros(*aatype.shape, 4, dtype=torch.float64)
    turns = torch.cat([torch.full_like(phi, torch.pi)[..., None], phi[..., None], psi[..., None], other], -1)
    groups = rigid_groups_from_torsions(
        aatype, backbone_from_torsions(aatype, phi, psi), torch.stack([turns.sin(), turns.cos()], -1)
    )
    mask = atom37_mask(aatype, torch.ones_like(phi))
    atoms = atom14_to_atom37(atom14_from_rigid_groups(aatype, groups), aatype, mask)
    found = torsions_from_atom37(aatype, atoms, mask)
    read = torch.atan2(found.sin_cos[..., 0], found.sin_cos[..., 1])
    for index, asked in enumerate((turns[..., 0], phi)):
        assert torch.cos(read[:, 1:, index] - asked[:, 1:]).min() > 1 - 1e-5, "omega and phi"
    assert torch.cos(read[..., 2] - psi).min() > 1 - 1e-3, "psi, by the oxygen"
