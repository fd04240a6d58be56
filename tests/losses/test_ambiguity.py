"""Of two names an ambiguous atom of the truth gets the one that the prediction comes closer to."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helixfold.losses.ambiguity import RenamedTruth, alternative_is_better, renamed_truth
from helixfold.losses.fape import sidechain_fape
from helixfold.losses.labels import Labels
from helixfold.model.geometry.rigid_groups import rigid_groups_from_atom37
from helixfold.model.outputs import PredictedStructure
from tests.losses.chains import (
    SEQUENCE,
    a_motion,
    labels_from,
    labels_of,
    moved,
    random_structure,
    residue_types,
    structure_from,
)

AMBIGUOUS = torch.tensor([letter in "DEFY" for letter in SEQUENCE])
LAST_CHI = {"D": 4, "E": 5, "F": 4, "Y": 4}  # of the seven torsions


def chosen(atom14: Tensor, labels: Labels) -> Tensor:
    return alternative_is_better(
        atom14,
        labels.atom14_gt_positions,
        labels.atom14_gt_exists,
        labels.atom14_alt_gt_positions,
        labels.atom14_atom_is_ambiguous,
    )


def renamed(structure: PredictedStructure, labels: Labels) -> RenamedTruth:
    groups = rigid_groups_from_atom37(labels.aatype, labels.all_atom_positions, labels.all_atom_mask)
    return renamed_truth(structure.atom14[-1], labels, groups)


def other_names(structure: PredictedStructure, aatype: Tensor) -> PredictedStructure:
    """The same chain with all ambiguous groups turned by half."""
    raw = structure.unnormalized_torsions.clone()
    for place, letter in enumerate(SEQUENCE):
        if letter in LAST_CHI:
            raw[:, :, place, LAST_CHI[letter]] *= -1
    return structure_from(aatype, structure.frames, raw)


def test_a_prediction_with_the_other_names_is_renamed_and_one_with_the_same_is_not() -> None:
    aatype = residue_types()
    structure = random_structure(aatype)
    labels = labels_of(structure, aatype)
    turned = other_names(structure, aatype)
    assert not chosen(structure.atom14[-1], labels).any()
    assert torch.equal(chosen(turned.atom14[-1], labels)[0], AMBIGUOUS)
    # Under its best names the truth is what was predicted, frames too, but for idealised angles.
    assert sidechain_fape(turned, renamed(turned, labels), aatype, 10.0) < 0.02
    plain = replace(labels, atom14_atom_is_ambiguous=torch.zeros_like(labels.atom14_atom_is_ambiguous))
    assert sidechain_fape(turned, renamed(turned, plain), aatype, 10.0) > 0.02


def test_each_residue_is_renamed_by_itself() -> None:
    aatype = residue_types()
    structure = random_structure(aatype)
    labels = labels_of(structure, aatype)
    turned = other_names(structure, aatype)
    some = torch.arange(len(SEQUENCE)) % 2 == 0
    mixed = torch.where(some[:, None, None], turned.atom14[-1], structure.atom14[-1])
    assert torch.equal(chosen(mixed, labels)[0], AMBIGUOUS & some)


def test_atoms_their_mask_and_their_groups_are_renamed_together() -> None:
    aatype = residue_types()
    structure, observed = random_structure(aatype, 1), random_structure(aatype)
    labels = labels_of(observed, aatype, (torch.rand(observed.mask.shape) < 0.7).float())
    groups = rigid_groups_from_atom37(labels.aatype, labels.all_atom_positions, labels.all_atom_mask)
    swapped, truth = chosen(structure.atom14[-1], labels)[0], renamed(structure, labels)
    assert 0 < swapped.sum() < AMBIGUOUS.sum()
    assert (labels.atom14_gt_exists != labels.atom14_alt_gt_exists)[0, swapped].any()
    for place, other in enumerate(swapped):
        names = "atom14_alt_gt" if other else "atom14_gt"
        assert torch.equal(truth.atom14[0, place], getattr(labels, f"{names}_positions")[0, place])
        assert torch.equal(truth.atom14_mask[0, place], getattr(labels, f"{names}_exists")[0, place])
        frames = groups.alternative if other else groups.frames
        assert torch.equal(truth.frames.rotation[0, place], frames.rotation[0, place])


@pytest.mark.parametrize("share", [1.0, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_the_choice_is_that_of_the_smaller_sum_of_distance_errors(share: float, seed: int) -> None:
    aatype = residue_types("DAFWEYDE")
    structure, truth = random_structure(aatype, seed + 1), random_structure(aatype)
    labels = labels_of(truth, aatype, (torch.rand(truth.mask.shape) < share).float())
    found = chosen(structure.atom14[-1], labels)[0]
    atoms, exists = structure.atom14[-1, 0], labels.atom14_gt_exists[0].bool()
    ambiguous = labels.atom14_atom_is_ambiguous[0].bool()
    for place in range(8):
        sums = []
        for names in (labels.atom14_gt_positions[0], labels.atom14_alt_gt_positions[0]):
            total = 0.0
            for atom in (ambiguous[place] & exists[place]).nonzero()[:, 0]:
                fixed = exists & ~ambiguous
                true_distance = (names[place, atom] - labels.atom14_gt_positions[0][fixed]).norm(dim=-1)
                distance = (atoms[place, atom] - atoms[fixed]).norm(dim=-1)
                total += float((distance - true_distance).abs().sum())
            sums.append(total)
        assert bool(found[place]) == (sums[1] < sums[0])


def test_where_the_structures_lie_does_not_matter() -> None:
    aatype = residue_types()
    structure, labels = random_structure(aatype, 1), labels_of(random_structure(aatype), aatype)
    expected = chosen(structure.atom14[-1], labels)
    elsewhere = labels_from(aatype, moved(labels.all_atom_positions, a_motion()), labels.all_atom_mask)
    assert torch.equal(chosen(structure.atom14[-1], elsewhere), expected)
    assert torch.equal(chosen(moved(structure.atom14[-1], a_motion(2)), labels), expected)


def test_no_gradient_passes_through_the_choice() -> None:
    aatype = residue_types()
    structure, labels = random_structure(aatype, 1), labels_of(random_structure(aatype), aatype)
    truth = renamed(replace(structure, atom14=structure.atom14.clone().requires_grad_()), labels)
    assert not truth.atom14.requires_grad
    assert not truth.frames.rotation.requires_grad
