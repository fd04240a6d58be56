"""Ideal residues have ideal shapes, and distances fall into the right bins."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from data_pipeline import residues
from helixfold.model.embedders import RECYCLED_BINS
from helixfold.model.geometry.atoms import (
    DistanceBins,
    atom14_from_rigid_groups,
    atom14_mask,
    atom14_to_atom37,
    atom37_mask,
    distogram,
    pseudo_beta,
    rigid_groups_from_torsions,
)
from helixfold.model.geometry.frames import BackboneFrames
from helixfold.model.geometry.rigid import Rigid
from helixfold.model.templates import TEMPLATE_BINS
from helixfold.ops.structure.quaternions import quaternion_to_rotation

EVERY_TYPE = torch.arange(21)[None]


def random_torsions() -> Tensor:
    return normalize(torch.randn(1, 21, 7, 2), dim=-1)


def random_backbone() -> Rigid:
    rotation = quaternion_to_rotation(normalize(torch.randn(1, 21, 4), dim=-1))
    return Rigid(rotation=rotation, translation=torch.randn(1, 21, 3))


def test_the_first_group_is_the_backbone_itself() -> None:
    backbone = random_backbone()
    groups = rigid_groups_from_torsions(EVERY_TYPE, backbone, random_torsions())
    assert groups.rotation.shape == (1, 21, 8, 3, 3)
    torch.testing.assert_close(groups.rotation[:, :20, 0], backbone.rotation[:, :20])
    torch.testing.assert_close(groups.translation[:, :, 0], backbone.translation)


def test_every_group_is_a_rotation_where_its_torsion_exists() -> None:
    rotation = rigid_groups_from_torsions(EVERY_TYPE, random_backbone(), random_torsions()).rotation
    exists = torch.cat([torch.ones(21, 4), torch.from_numpy(residues.CHI_ANGLES_MASK.copy())], -1) > 0
    exists[20] = False  # an unknown residue has no frames, as in DeepMind's tables
    rotation = rotation[0][exists]
    assert (rotation @ rotation.mT - torch.eye(3)).abs().max() < 1e-5
    assert (torch.linalg.det(rotation) - 1).abs().max() < 1e-5


def test_bond_lengths_do_not_depend_on_torsions() -> None:
    groups = rigid_groups_from_torsions(EVERY_TYPE, random_backbone(), random_torsions())
    mask = atom37_mask(EVERY_TYPE, torch.ones(1, 21))
    atoms = atom14_to_atom37(atom14_from_rigid_groups(EVERY_TYPE, groups), EVERY_TYPE, mask)[0, :20]

    def length(one: str, other: str) -> Tensor:
        return (atoms[:, residues.ATOM_ORDER[one]] - atoms[:, residues.ATOM_ORDER[other]]).norm(dim=-1)

    assert (length("N", "CA") - 1.46).abs().max() < 0.02
    assert (length("CA", "C") - 1.525).abs().max() < 0.01
    assert (length("C", "O") - 1.23).abs().max() < 0.01
    lysine = residues.RESTYPES.index("K")
    for one, other in (("CB", "CG"), ("CG", "CD"), ("CD", "CE")):
        assert abs(length(one, other)[lysine] - 1.52) < 0.02
    assert abs(length("CE", "NZ")[lysine] - 1.49) < 0.02


def test_a_later_torsion_moves_no_earlier_group() -> None:
    torsions, backbone = random_torsions(), random_backbone()
    before = rigid_groups_from_torsions(EVERY_TYPE, backbone, torsions)
    torsions[:, :, 5] = normalize(torch.randn(1, 21, 2), dim=-1)  # chi3, the frame of group 6
    after = rigid_groups_from_torsions(EVERY_TYPE, backbone, torsions)
    moved = (after.rotation - before.rotation).abs().amax((0, 1, 3, 4)) > 1e-4
    assert moved.tolist() == [False] * 6 + [True, True]


def test_atoms_that_a_residue_lacks_stand_at_the_origin() -> None:
    seq_mask = torch.ones(1, 21)
    seq_mask[0, 3] = 0
    groups = rigid_groups_from_torsions(EVERY_TYPE, random_backbone(), random_torsions())
    positions = atom14_from_rigid_groups(EVERY_TYPE, groups)
    exists = torch.from_numpy(residues.ATOM14_MASK.copy())[None]
    assert (positions[exists == 0] == 0).all()
    assert (positions[exists == 1] != 0).all()
    mask14, mask37 = atom14_mask(EVERY_TYPE, seq_mask), atom37_mask(EVERY_TYPE, seq_mask)
    assert (mask14.sum(-1) == mask37.sum(-1)).all()
    assert mask14[0, 3].sum() == mask37[0, 3].sum() == 0
    assert (atom14_to_atom37(positions, EVERY_TYPE, mask37)[0, 3] == 0).all()


def test_the_two_layouts_hold_the_same_atoms_by_name() -> None:
    positions = torch.randn(1, 21, 14, 3)
    found = atom14_to_atom37(positions, EVERY_TYPE, atom37_mask(EVERY_TYPE, torch.ones(1, 21)))
    for kind in range(20):
        for index, name in enumerate(residues.ATOM14_NAMES[kind]):
            if name:
                assert (found[0, kind, residues.ATOM_ORDER[name]] == positions[0, kind, index]).all()


def test_identity_frames_and_torsions_of_zero_give_the_tables() -> None:
    zero = torch.tensor([0.0, 1.0]).expand(1, 21, 7, 2)
    identity = BackboneFrames.identity(torch.zeros(1, 21, 8)).rigid()
    groups = rigid_groups_from_torsions(EVERY_TYPE, identity, zero)
    default = torch.from_numpy(residues.RIGID_GROUP_DEFAULT_FRAME.copy())[None]
    # Groups up to chi1 hang on the backbone.
    torch.testing.assert_close(groups.rotation[:, :, :5], default[:, :, :5, :3, :3])
    torch.testing.assert_close(groups.translation[:, :, :5], default[:, :, :5, :3, 3])


def test_pseudo_beta_of_glycine_is_its_alpha_carbon() -> None:
    positions = torch.randn(1, 21, 37, 3)
    found = pseudo_beta(EVERY_TYPE, positions)
    glycine = residues.RESTYPES.index("G")
    for kind in range(21):
        atom = residues.ATOM_ORDER["CA" if kind == glycine else "CB"]
        assert (found[0, kind] == positions[0, kind, atom]).all()


def one_pair(distance: float, bins: DistanceBins) -> list[int]:
    """The bins that hold this distance."""
    positions = torch.tensor([[[0.0, 0.0, 0.0], [distance, 0.0, 0.0]]])
    found = distogram(positions, positions, bins)
    assert (found[0, 0, 1] == found[0, 1, 0]).all()
    return found[0, 0, 1].nonzero().flatten().tolist()


@pytest.mark.parametrize(("bins", "step"), [(RECYCLED_BINS, 1.25), (TEMPLATE_BINS, 1.25)])
def test_edges_step_evenly(bins: DistanceBins, step: float) -> None:
    for index in range(bins.count):
        edge = bins.first + index * step
        assert one_pair(edge + 0.01, bins) == [index]
        assert one_pair(edge - 0.01, bins) == ([index - 1] if index else [])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.floats(0, 1000, width=32), st.sampled_from([RECYCLED_BINS, TEMPLATE_BINS]))
def test_a_distance_is_in_at_most_one_bin(distance: float, bins: DistanceBins) -> None:
    found, place = one_pair(distance, bins), (distance - bins.first) / 1.25
    if abs(place - round(place)) > 1e-4:
        assert found == ([min(int(place), bins.count - 1)] if place > 0 else [])
    else:
        assert len(found) <= 1


def test_a_distance_on_an_edge_is_in_no_bin() -> None:
    """As in DeepMind's program, whose comparisons are both strict."""
    assert one_pair(3.25, RECYCLED_BINS) == []
    assert one_pair(4.5, RECYCLED_BINS) == []


def test_coinciding_atoms_are_in_no_bin() -> None:
    positions = torch.zeros(2, 3, 3)
    assert distogram(positions, positions, RECYCLED_BINS).sum() == 0
