"""The frames of a structure's groups are the ones that its atoms were placed by."""

import itertools

import pytest
import torch
from torch.nn.functional import normalize

from data_pipeline import residues
from helixfold.model.geometry.atoms import (
    atom14_from_rigid_groups,
    atom14_to_atom37,
    atom37_mask,
    rigid_groups_from_torsions,
)
from helixfold.model.geometry.observed import groups_and_chis_from_atom37
from helixfold.model.geometry.rigid import Rigid
from helixfold.model.geometry.rigid_groups import rigid_groups_from_atom37
from helixfold.ops.structure.quaternions import quaternion_to_rotation
from tests.model.geometry.test_torsions import SIDE_CHAINS, SYMMETRIC

AATYPE = torch.arange(21)[None]
PSI, CHI1 = 3, 4


def placed(seed: int = 0) -> tuple[Rigid, torch.Tensor, torch.Tensor]:
    """Groups of one residue of each type, and their atoms."""
    generator = torch.Generator().manual_seed(seed)
    backbone = Rigid(
        rotation=quaternion_to_rotation(normalize(torch.randn(1, 21, 4, generator=generator), dim=-1)),
        translation=10 * torch.randn(1, 21, 3, generator=generator),
    )
    sin_cos = normalize(torch.randn(1, 21, 7, 2, generator=generator), dim=-1)
    groups = rigid_groups_from_torsions(AATYPE, backbone, sin_cos)
    mask = atom37_mask(AATYPE, torch.ones(1, 21))
    return groups, atom14_to_atom37(atom14_from_rigid_groups(AATYPE, groups), AATYPE, mask), mask


def test_frames_put_in_come_out_of_the_atoms() -> None:
    groups, positions, mask = placed()
    found = rigid_groups_from_atom37(AATYPE, positions, mask)
    there = found.mask.bool()
    assert there[0, :20, [0, PSI]].all()
    assert torch.equal(there[0, :, CHI1:], torch.tensor(residues.CHI_ANGLES_MASK).bool())
    assert not there[0, :, [1, 2]].any()
    assert not there[0, 20].any()
    # Tabulated atoms are rounded to 0.001 Angstrom.
    assert (found.frames.rotation - groups.rotation)[there].abs().max() < 5e-3
    assert (found.frames.translation - groups.translation)[there].abs().max() < 5e-3


def test_the_alternative_is_the_frame_of_atoms_that_bear_each_others_names() -> None:
    _, positions, mask = placed()
    swapped = positions.clone()
    pairs = {"D": ("OD1", "OD2"), "E": ("OE1", "OE2"), "F": ("CD1", "CD2"), "Y": ("CD1", "CD2")}
    for letter, names in pairs.items():
        one, two = (residues.ATOM_ORDER[name] for name in names)
        swapped[0, residues.RESTYPES.index(letter), [one, two]] = positions[
            0, residues.RESTYPES.index(letter), [two, one]
        ]
    found, renamed = (rigid_groups_from_atom37(AATYPE, atoms, mask) for atoms in (positions, swapped))
    there = found.mask.bool()
    assert (found.alternative.rotation - renamed.frames.rotation)[there].abs().max() < 0.03
    turned = (found.alternative.rotation - found.frames.rotation).abs().amax((-1, -2))[0] > 0.5
    assert {residues.RESTYPES[int(residue)] for residue in turned.any(-1).nonzero()[:, 0]} == set(pairs)


def test_a_missing_atom_takes_away_the_groups_it_defines() -> None:
    _, positions, mask = placed()
    lysine = residues.RESTYPES.index("K")
    mask[0, lysine, residues.ATOM_ORDER["CG"]] = 0
    found = rigid_groups_from_atom37(AATYPE, positions, mask).mask[0, lysine]
    # CG ends chi1, and is where chi2 and the line to chi3 begin.
    assert found.tolist() == [1, 0, 0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize("seed", range(2))
def test_frames_of_all_residue_types_are_made_of_the_three_atoms_that_define_them(seed: int) -> None:
    """In a batch whose residues differ, with missing atoms that hold large numbers; both ways to compute them."""
    generator = torch.Generator().manual_seed(seed)
    aatype = torch.stack([torch.randperm(21, generator=generator) for _ in range(2)])
    positions = 3 * torch.randn(2, 21, 37, 3, generator=generator)
    mask = (torch.rand(2, 21, 37, generator=generator) < 0.9).float()
    mask[0, 4], mask[1, [0, 20]] = 0, 0
    far = positions + 1e4 * (1 - mask)[..., None]
    found = rigid_groups_from_atom37(aatype, far, mask)
    also, _ = groups_and_chis_from_atom37(aatype, far, mask)
    for sample, residue in itertools.product(range(2), range(21)):
        letter = "ARNDCQEGHILKMFPSTWYVX"[int(aatype[sample, residue])]
        chain = SIDE_CHAINS.get(letter, "").split()
        groups = {0: ["N", "CA", "C"], PSI: ["CA", "C", "O"]}
        groups |= {CHI1 + chi: chain[1 + chi : 4 + chi] for chi in range(len(chain) - 3)}
        for group in range(8):
            names = groups.get(group, [])
            atoms = [residues.ATOM_ORDER[name] for name in names]
            # An unknown residue has a backbone and an oxygen in the table, if they are observed.
            there = bool(atoms) and all(bool(mask[sample, residue, atom]) for atom in atoms)
            for each in (found, also):
                assert bool(each.mask[sample, residue, group]) == there, (letter, group)
            if not there:
                continue
            first, origin, last = positions[sample, residue, atoms].double()
            # The backbone's x axis points from CA to C and N lies in its plane; others point away from their first
            # atom.
            x = normalize(last - origin if group == 0 else origin - first, dim=0)
            y = (first if group == 0 else last) - origin
            y = normalize(y - (y @ x) * x, dim=0)
            expected = torch.stack([x, y, torch.linalg.cross(x, y)], -1)
            half = torch.tensor([1.0, -1, -1]) if SYMMETRIC.get(letter) == group - CHI1 else torch.ones(3)
            for each in (found, also):
                rotation, turned = each.frames.rotation[sample, residue, group], each.alternative.rotation
                torch.testing.assert_close(rotation.double(), expected, rtol=0, atol=1e-4)
                torch.testing.assert_close(turned[sample, residue, group].double(), expected * half, rtol=0, atol=1e-4)
                for frames in (each.frames, each.alternative):
                    torch.testing.assert_close(frames.translation[sample, residue, group].double(), origin)


def test_absent_residues_give_finite_frames() -> None:
    found = rigid_groups_from_atom37(AATYPE, torch.zeros(1, 21, 37, 3), torch.zeros(1, 21, 37))
    assert torch.isfinite(found.frames.rotation).all()
    assert not found.mask.any()
