"""Torsions are what chemists measure, and come back out of the atoms that they place."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from data_pipeline import residues
from helixfold.model.geometry.atoms import (
    atom14_from_rigid_groups,
    atom14_to_atom37,
    atom37_mask,
    rigid_groups_from_torsions,
)
from helixfold.model.geometry.rigid import Rigid
from helixfold.model.geometry.torsions import Torsions, chis_from_atom37, torsions_from_atom37
from helixfold.ops.structure.quaternions import quaternion_to_rotation

N, CA, C, OXYGEN = (residues.ATOM_ORDER[name] for name in ("N", "CA", "C", "O"))
PSI, CHI1 = 2, 3


def dihedral(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Angle between the planes abc and bcd, positive clockwise along b to c (IUPAC)."""
    first, axis, last = b - a, c - b, d - c
    normal_1, normal_2 = torch.linalg.cross(first, axis), torch.linalg.cross(axis, last)
    sine = (torch.linalg.cross(normal_1, normal_2) * normalize(axis, dim=-1)).sum(-1)
    return torch.atan2(sine, (normal_1 * normal_2).sum(-1))


def measured(torsions: Torsions) -> Tensor:
    return torch.atan2(*torsions.sin_cos.unbind(-1))


def angle_between(a: Tensor, b: Tensor) -> Tensor:
    return torch.remainder(a - b + torch.pi, 2 * torch.pi) - torch.pi


def built(aatype: Tensor, sin_cos: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Atoms and their mask of residues with these torsions, each somewhere in space."""
    shape = aatype.shape
    backbone = Rigid(
        rotation=quaternion_to_rotation(normalize(torch.randn(*shape, 4, generator=generator), dim=-1)),
        translation=20 * torch.randn(*shape, 3, generator=generator),
    )
    atom14 = atom14_from_rigid_groups(aatype, rigid_groups_from_torsions(aatype, backbone, sin_cos))
    mask = atom37_mask(aatype, torch.ones(shape))
    return atom14_to_atom37(atom14, aatype, mask), mask


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 2**31))
def test_torsions_put_in_come_out(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    aatype = torch.arange(21)[None]
    sin_cos = normalize(torch.randn(1, 21, 7, 2, generator=generator), dim=-1)
    found = torsions_from_atom37(aatype, *built(aatype, sin_cos, generator))
    # Pre-omega and phi belong to two residues, which do not stand together here.
    defined = found.mask[..., PSI:].bool()
    chis = torch.from_numpy(residues.CHI_ANGLES_MASK.copy()).bool()
    assert (defined[0, :, CHI1 - PSI :] == chis).all()
    # A residue of unknown type has no oxygen.
    assert (defined[0, :, 0] == torch.tensor([True] * 20 + [bool(residues.ATOM37_MASK[20, OXYGEN])])).all()
    assert (found.sin_cos[..., PSI:, :] - sin_cos[..., PSI:, :])[defined].abs().max() < 2e-3


def test_backbone_torsions_are_dihedral_angles() -> None:
    positions, mask = 3 * torch.randn(1, 9, 37, 3), torch.ones(1, 9, 37)
    found = measured(torsions_from_atom37(torch.randint(0, 20, (1, 9)), positions, mask))[0]
    here, before = positions[0, 1:], positions[0, :-1]
    expected = [
        dihedral(before[:, CA], before[:, C], here[:, N], here[:, CA]),
        dihedral(before[:, C], here[:, N], here[:, CA], here[:, C]),
        # Psi is N-CA-C-N, whose last atom stands opposite to O.
        dihedral(here[:, N], here[:, CA], here[:, C], here[:, OXYGEN]) + torch.pi,
    ]
    for column, angles in enumerate(expected):
        assert angle_between(found[1:, column], angles).abs().max() < 1e-3


def test_side_chain_torsions_are_dihedral_angles() -> None:
    lysine = residues.RESTYPES.index("K")
    positions = 3 * torch.randn(1, 1, 37, 3)
    found = measured(torsions_from_atom37(torch.full((1, 1), lysine), positions, torch.ones(1, 1, 37)))[0, 0, CHI1:]
    atoms = positions[0, 0, [residues.ATOM_ORDER[name] for name in ("N", "CA", "CB", "CG", "CD", "CE", "NZ")]]
    expected = torch.stack([dihedral(*atoms[first : first + 4]) for first in range(4)])
    assert angle_between(found, expected).abs().max() < 1e-3


# Atoms along each side chain, from N (IUPAC); each four that follow each other have an angle.
SIDE_CHAINS = {
    "R": "N CA CB CG CD NE CZ",
    "N": "N CA CB CG OD1",
    "D": "N CA CB CG OD1",
    "C": "N CA CB SG",
    "Q": "N CA CB CG CD OE1",
    "E": "N CA CB CG CD OE1",
    "H": "N CA CB CG ND1",
    "I": "N CA CB CG1 CD1",
    "L": "N CA CB CG CD1",
    "K": "N CA CB CG CD CE NZ",
    "M": "N CA CB CG SD CE",
    "F": "N CA CB CG CD1",
    "P": "N CA CB CG CD",
    "S": "N CA CB OG",
    "T": "N CA CB OG1",
    "W": "N CA CB CG CD1",
    "Y": "N CA CB CG CD1",
    "V": "N CA CB CG1",
}
SYMMETRIC = {"D": 1, "F": 1, "Y": 1, "E": 2}  # the angle that half a turn does not change, from 0


@pytest.mark.parametrize("seed", range(2))
def test_all_torsions_of_all_residue_types_are_dihedral_angles_of_the_atoms_that_are_there(seed: int) -> None:
    """In a batch of templates whose residues differ, with missing atoms, unknown residues and gaps in the middle."""
    generator = torch.Generator().manual_seed(seed)
    aatype = torch.stack([torch.randperm(22, generator=generator) for _ in range(6)]).view(2, 3, 22)
    positions = 3 * torch.randn(2, 3, 22, 37, 3, generator=generator)
    mask = (torch.rand(2, 3, 22, 37, generator=generator) < 0.93).float()
    mask[0, 1, [0, 5, 6, 21]] = 0
    found, chis = torsions_from_atom37(aatype, positions, mask), chis_from_atom37(aatype.clamp(max=20), positions, mask)
    angles, other = measured(found), torch.atan2(*found.alternative_sin_cos.unbind(-1))
    for sample, template, residue in itertools.product(range(2), range(3), range(22)):
        here = sample, template, residue
        letter = "ARNDCQEGHILKMFPSTWYVX-"[int(aatype[here])]
        chain = SIDE_CHAINS.get(letter, "").split()
        before = [[(-1, "CA"), (-1, "C"), (0, "N"), (0, "CA")], [(-1, "C"), (0, "N"), (0, "CA"), (0, "C")]]
        quadruples = [*before, [(0, name) for name in ("N", "CA", "C", "O")]]
        quadruples += [[(0, name) for name in chain[first : first + 4]] for first in range(len(chain) - 3)]
        for torsion in range(7):
            points, observed = [], torsion < len(quadruples)
            for step, name in quadruples[torsion] if observed else []:
                atom = sample, template, residue + step, residues.ATOM_ORDER[name]
                observed = observed and residue + step >= 0 and bool(mask[atom])
                points.append(positions[atom])
            assert bool(found.mask[here][torsion]) == observed, (letter, torsion)
            if torsion >= CHI1:
                assert bool(chis.mask[here][torsion - CHI1]) == observed, (letter, torsion)
            if not observed:
                continue
            expected = dihedral(*points) + torch.pi * (torsion == PSI)
            turn = torch.pi * (SYMMETRIC.get(letter) == torsion - CHI1)
            assert angle_between(angles[here][torsion], expected).abs() < 1e-3
            assert angle_between(other[here][torsion], expected + turn).abs() < 1e-3
            if torsion >= CHI1:
                assert torch.equal(chis.sin_cos[here][torsion - CHI1], found.sin_cos[here][torsion])
                assert torch.equal(
                    chis.alternative_sin_cos[here][torsion - CHI1], found.alternative_sin_cos[here][torsion]
                )


@pytest.mark.parametrize(
    ("missing", "lost_here", "lost_after"),
    [
        ("N", [0, 1, 2, 3], []),
        ("CA", [0, 1, 2, 3, 4], [0]),
        ("C", [1, 2], [0, 1]),
        ("O", [2], []),
        ("CG", [3, 4, 5, 6], []),
        ("NZ", [6], []),
    ],
)
def test_a_missing_atom_undefines_its_torsions_only(missing: str, lost_here: list[int], lost_after: list[int]) -> None:
    lysines, mask = torch.full((1, 3), residues.RESTYPES.index("K")), torch.ones(1, 3, 37)
    positions = torch.randn(1, 3, 37, 3)
    everything = torsions_from_atom37(lysines, positions, mask).mask
    mask[0, 1, residues.ATOM_ORDER[missing]] = 0
    lost = everything - torsions_from_atom37(lysines, positions, mask).mask
    assert everything[0, 0].tolist() == [0, 0, 1, 1, 1, 1, 1]  # nothing comes before the first residue
    assert lost[0, 1].nonzero().flatten().tolist() == lost_here
    assert lost[0, 2].nonzero().flatten().tolist() == lost_after
    assert lost[0, 0].sum() == 0


def test_symmetric_side_chains_have_an_alternative_turned_by_half() -> None:
    aatype = torch.arange(20)[None]
    torsions = torsions_from_atom37(aatype, torch.randn(1, 20, 37, 3), torch.ones(1, 20, 37))
    defined = torsions.mask[0].bool()
    turned = (torsions.alternative_sin_cos == -torsions.sin_cos).all(-1)[0] & defined
    kept = (torsions.alternative_sin_cos == torsions.sin_cos).all(-1)[0] & defined
    found = {(residues.RESTYPES[row], f"chi{column - CHI1 + 1}") for row, column in turned.nonzero().tolist()}
    assert found == {("D", "chi2"), ("F", "chi2"), ("Y", "chi2"), ("E", "chi3")}
    assert ((turned ^ kept) == defined).all()


def test_a_gap_in_a_template_is_taken_as_an_unknown_residue() -> None:
    positions, mask = torch.randn(1, 2, 37, 3), torch.ones(1, 2, 37)
    gap, unknown = (torsions_from_atom37(torch.tensor([[0, kind]]), positions, mask) for kind in (21, 20))
    assert (gap.sin_cos == unknown.sin_cos).all()
    assert (gap.mask[0, 1, CHI1:] == 0).all()
