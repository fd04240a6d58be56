"""The frames of a structure's groups are the ones that its atoms were placed by."""

import torch
from torch.nn.functional import normalize

from data_pipeline import residues
from helixfold.geometry.atoms import (
    atom14_from_rigid_groups,
    atom14_to_atom37,
    atom37_mask,
    rigid_groups_from_torsions,
)
from helixfold.geometry.rigid import Rigid
from helixfold.geometry.rigid_groups import rigid_groups_from_atom37
from helixfold.ops.structure.quaternions import quaternion_to_rotation

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


def test_absent_residues_give_finite_frames() -> None:
    found = rigid_groups_from_atom37(AATYPE, torch.zeros(1, 21, 37, 3), torch.zeros(1, 21, 37))
    assert torch.isfinite(found.frames.rotation).all()
    assert not found.mask.any()
