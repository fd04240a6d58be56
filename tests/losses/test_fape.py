"""FAPE is what its definition says, and does not ask where in space a structure lies."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from helixfold.losses.ambiguity import renamed_truth
from helixfold.losses.fape import (
    FramesAndPoints,
    backbone_fape,
    chain_backbone_fape,
    frame_aligned_point_error,
    sidechain_fape,
)
from helixfold.losses.labels import Labels
from helixfold.model.geometry.rigid import Rigid
from helixfold.model.geometry.rigid_groups import rigid_groups_from_atom37
from helixfold.model.outputs import PredictedStructure
from helixfold.ops.structure.quaternions import quaternion_to_rotation
from tests.losses.chains import (
    a_motion,
    labels_from,
    labels_of,
    moved,
    moved_structure,
    random_structure,
    residue_types,
)

FLOOR = 1e-3  # what a perfect prediction is left with


def backbone(structure: PredictedStructure, labels: Labels, clamp: float = 10.0) -> Tensor:
    groups = rigid_groups_from_atom37(labels.aatype, labels.all_atom_positions, labels.all_atom_mask)
    clamps = torch.full(labels.aatype.shape[:1], clamp)
    return backbone_fape(structure.frames, groups.frames[..., 0], groups.mask[..., 0], clamps)


def sidechain(structure: PredictedStructure, labels: Labels) -> Tensor:
    groups = rigid_groups_from_atom37(labels.aatype, labels.all_atom_positions, labels.all_atom_mask)
    truth = renamed_truth(structure.atom14[-1].detach(), labels, groups)
    return sidechain_fape(structure, truth, labels.aatype, 10.0)


def random_rigid(*shape: int, dtype: torch.dtype = torch.float64) -> Rigid:
    return Rigid(
        rotation=quaternion_to_rotation(normalize(torch.randn(*shape, 4, dtype=dtype), dim=-1)),
        translation=5 * torch.randn(*shape, 3, dtype=dtype),
    )


def test_the_loops_of_the_algorithm_give_the_same() -> None:
    b, f, p = 2, 5, 7
    frames, true_frames = random_rigid(b, f), random_rigid(b, f)
    points, true_points = (5 * torch.randn(b, p, 3, dtype=torch.float64) for _ in range(2))
    frames_mask, points_mask = (torch.randint(0, 2, (b, n)).double() for n in (f, p))
    clamp = torch.tensor([6.0, math.inf], dtype=torch.float64)
    found = frame_aligned_point_error(
        FramesAndPoints(frames=frames, points=points),
        FramesAndPoints(frames=true_frames, points=true_points),
        frames_mask,
        points_mask,
        clamp,
    )
    for sample in range(b):
        errors = []
        for i in range(f):
            for j in range(p):
                local = frames[sample, i].invert_apply(points[sample, j])
                true_local = true_frames[sample, i].invert_apply(true_points[sample, j])
                error = ((local - true_local).square().sum() + 1e-4).sqrt().clamp(max=clamp[sample])
                if frames_mask[sample, i] and points_mask[sample, j]:
                    errors.append(error / 10)
        expected = sum(errors) / (len(errors) + 1e-4)
        torch.testing.assert_close(found[sample], torch.as_tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("within", [True, False])
def test_errors_within_and_between_chains_are_those_of_a_loop(within: bool) -> None:
    layers, b, r = 2, 2, 6
    trajectory = torch.cat(
        [normalize(torch.randn(layers, b, r, 4), dim=-1), 5 * torch.randn(layers, b, r, 3)], -1
    ).double()
    trajectory.requires_grad_()
    truth, mask = random_rigid(b, r), torch.tensor([[1.0, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 0]]).double()
    asym_id = torch.tensor([[1, 1, 1, 2, 2, 3], [1, 1, 1, 1, 1, 0]])
    clamp = torch.tensor([8.0, 12.0]).double()
    found = chain_backbone_fape(trajectory, truth, mask, clamp, asym_id, within=within, unit=20.0)
    frames = Rigid(rotation=quaternion_to_rotation(trajectory[..., :4]), translation=trajectory[..., 4:])
    expected = []
    for sample in range(b):
        errors = []
        for layer, i, j in itertools.product(range(layers), range(r), range(r)):
            if mask[sample, i] and mask[sample, j] and (asym_id[sample, i] == asym_id[sample, j]) == within:
                local = frames[layer, sample, i].invert_apply(frames.translation[layer, sample, j])
                true_local = truth[sample, i].invert_apply(truth.translation[sample, j])
                errors.append((local - true_local).square().sum().clamp(min=1e-8).sqrt().clamp(max=clamp[sample]))
        expected.append(sum(errors) / layers / 20 / (len(errors) / layers + 1e-4))
    assert bool(found[1] == 0) == (not within)
    torch.testing.assert_close(found, torch.stack([torch.as_tensor(each).double() for each in expected]))
    (ours,) = torch.autograd.grad(found.sum(), trajectory)
    (theirs,) = torch.autograd.grad(sum(each.sum() for each in expected if isinstance(each, Tensor)), trajectory)
    torch.testing.assert_close(ours, theirs)


def test_gradients_are_those_of_finite_differences() -> None:
    true_frames, true_points = random_rigid(2, 3), torch.randn(2, 4, 3, dtype=torch.float64) * 5
    frames_mask, points_mask = torch.ones(2, 3).double(), torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1]]).double()

    def error(rotation: Tensor, translation: Tensor, points: Tensor) -> Tensor:
        return frame_aligned_point_error(
            FramesAndPoints(frames=Rigid(rotation=rotation, translation=translation), points=points),
            FramesAndPoints(frames=true_frames, points=true_points),
            frames_mask,
            points_mask,
            torch.tensor([8.0, math.inf], dtype=torch.float64),
        )

    start = random_rigid(2, 3)
    given = (start.rotation, start.translation, torch.randn(2, 4, 3, dtype=torch.float64) * 5)
    assert torch.autograd.gradcheck(error, tuple(each.requires_grad_() for each in given))


def test_blocks_and_left_out_pairs_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pair at a time, some, or all at once, with pairs that do not count (as on a GPU) or without."""
    aatype = residue_types().expand(2, -1)
    truth = random_structure(aatype, 1)
    labels = labels_of(truth, aatype, (torch.rand(truth.mask.shape) < 0.8).float())
    results = []
    for size, everything in ((1, False), (20_000, False), (20_000, True), (2**30, True)):
        monkeypatch.setattr("helixfold.ops.structure.aligned_errors._CPU_BLOCK", size)
        if everything:
            monkeypatch.setattr("helixfold.ops.structure.aligned_errors.unmasked", lambda _: slice(None))
        structure = random_structure(aatype)
        leaves = (structure.rigid_groups.requires_grad_(), structure.atom14.requires_grad_())
        error = sidechain(structure, labels)
        (error * torch.tensor([1.0, 3.0])).sum().backward()
        results.append((error.detach(), *(leaf.grad for leaf in leaves)))
    for result in results[1:]:
        for found, expected in zip(result, results[0], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("off", "clamp", "expected"), [(3.0, 10.0, 0.3), (20.0, 10.0, 1.0), (20.0, math.inf, 2.0)])
def test_errors_count_up_to_the_clamp(off: float, clamp: float, expected: float) -> None:
    frames = random_rigid(1, 1, dtype=torch.float32)
    points = torch.tensor([[[0.0, off, 0.0]]], requires_grad=True)
    found = frame_aligned_point_error(
        FramesAndPoints(frames=frames, points=points),
        FramesAndPoints(frames=frames, points=torch.zeros(1, 1, 3)),
        torch.ones(1, 1),
        torch.ones(1, 1),
        torch.tensor([clamp]),
    )
    torch.testing.assert_close(found, torch.tensor([expected]), rtol=2e-4, atol=0)
    found.sum().backward()
    assert points.grad is not None
    torch.testing.assert_close(points.grad[0, 0, 1], torch.tensor(0.0 if off > clamp else 0.1), rtol=2e-4, atol=0)


def test_each_sample_is_clamped_as_it_asks() -> None:
    aatype = residue_types().expand(2, -1)
    structure, labels = random_structure(aatype), labels_of(random_structure(aatype, 1), aatype)
    groups = rigid_groups_from_atom37(labels.aatype, labels.all_atom_positions, labels.all_atom_mask)
    mixed = backbone_fape(structure.frames, groups.frames[..., 0], groups.mask[..., 0], torch.tensor([10.0, math.inf]))
    clamped, free = backbone(structure, labels, 10.0), backbone(structure, labels, math.inf)
    assert torch.equal(mixed, torch.stack([clamped[0], free[1]]))
    assert (clamped < free).all()
    assert (clamped < 1).all()


def test_a_perfect_prediction_is_left_with_the_floor() -> None:
    aatype = residue_types()
    structure = random_structure(aatype, layers=1)
    labels = labels_of(structure, aatype)
    # Tabulated atoms are rounded to 0.001 Angstrom, and far points magnify what that turns a frame by.
    assert FLOOR * 0.99 < backbone(structure, labels) < FLOOR * 1.5
    assert FLOOR * 0.99 < sidechain(structure, labels) < FLOOR * 1.5


def test_where_the_structures_lie_does_not_matter() -> None:
    aatype = residue_types()
    structure, truth = random_structure(aatype), random_structure(aatype, 1)
    labels, motion = labels_of(truth, aatype), a_motion()
    elsewhere = labels_from(aatype, moved(labels.all_atom_positions, motion), labels.all_atom_mask)
    torch.testing.assert_close(backbone(structure, elsewhere), backbone(structure, labels), rtol=1e-5, atol=0)
    expected = sidechain(structure, labels)
    torch.testing.assert_close(sidechain(structure, elsewhere), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(sidechain(moved_structure(structure, motion), labels), expected, rtol=1e-5, atol=0)


def test_a_mirror_image_is_told_apart() -> None:
    aatype = residue_types()
    structure = random_structure(aatype, layers=1)
    mirrored = labels_from(aatype, structure.positions * torch.tensor([1.0, 1.0, -1.0]), structure.mask)
    assert backbone(structure, mirrored) > 0.1
    assert sidechain(structure, mirrored) > 0.1


def test_the_backbones_error_is_the_mean_over_iterations() -> None:
    aatype = residue_types()
    structure, labels = random_structure(aatype, layers=3), labels_of(random_structure(aatype, 1), aatype)
    each = [backbone(replace(structure, **only(structure, layer)), labels) for layer in range(3)]
    torch.testing.assert_close(backbone(structure, labels), torch.stack(each).mean(0))


def only(structure: PredictedStructure, layer: int) -> dict[str, Tensor]:
    names = ("frames", "rigid_groups", "atom14", "torsions", "unnormalized_torsions")
    return {name: getattr(structure, name)[layer : layer + 1] for name in names}


def test_side_chains_are_those_of_the_last_iteration() -> None:
    aatype = residue_types()
    structure, labels = random_structure(aatype, layers=3), labels_of(random_structure(aatype, 1), aatype)
    assert torch.equal(sidechain(structure, labels), sidechain(replace(structure, **only(structure, 2)), labels))


def test_atoms_that_were_not_observed_do_not_count() -> None:
    aatype = residue_types()
    structure, truth = random_structure(aatype), random_structure(aatype, 1)
    observed = (torch.rand(truth.mask.shape) < 0.7).float()
    labels = labels_of(truth, aatype, observed)
    shifted = truth.positions + 7 * (1 - observed)[..., None]
    others = replace(
        labels_of(replace(truth, positions=shifted), aatype),
        **{name: getattr(labels, name) for name in ("all_atom_mask", "atom14_gt_exists", "atom14_alt_gt_exists")},
    )
    assert torch.equal(backbone(structure, others), backbone(structure, labels))
    # Which name a residue with one atom of a pair observed gets depends on where the other would be.
    paired = replace(labels, atom14_atom_is_ambiguous=torch.zeros_like(labels.atom14_atom_is_ambiguous))
    others = replace(others, atom14_atom_is_ambiguous=paired.atom14_atom_is_ambiguous)
    assert torch.equal(sidechain(structure, others), sidechain(structure, paired))


def test_every_group_with_atoms_counts() -> None:
    aatype = residue_types()
    structure, labels = random_structure(aatype), labels_of(random_structure(aatype, 1), aatype)
    groups = structure.rigid_groups.requires_grad_()
    sidechain(structure, labels).sum().backward()
    assert groups.grad is not None
    has_group = rigid_groups_from_atom37(aatype, labels.all_atom_positions, labels.all_atom_mask).mask.bool()
    assert has_group[..., 7].any()
    assert torch.equal(groups.grad[-1].abs().amax((-1, -2)) > 0, has_group)
    assert not groups.grad[0].any()


def test_an_unknown_residues_groups_do_not_count() -> None:
    aatype = residue_types("AXG")
    structure = random_structure(aatype)
    positions, mask = structure.positions.clone(), structure.mask.clone()
    positions[:, 1, :5], mask[:, 1, :5] = torch.randn(1, 5, 3), 1
    labels = labels_from(aatype, positions, mask)
    known = residue_types("AG")
    two = {name: value[..., [0, 2], :, :] for name, value in only(structure, 1).items() if name == "atom14"}
    expected = sidechain(
        replace(
            random_structure(known, layers=1),
            rigid_groups=structure.rigid_groups[-1:, :, [0, 2]],
            **two,
        ),
        labels_from(known, positions[:, [0, 2]], mask[:, [0, 2]]),
    )
    torch.testing.assert_close(sidechain(structure, labels), expected)


@pytest.mark.parametrize("observed", [0.0, 1.0])
@pytest.mark.parametrize("residues", ["A", "AFYDE"])
def test_gradients_are_finite_where_all_residues_coincide(residues: str, observed: float) -> None:
    aatype = residue_types(residues)
    structure = random_structure(aatype, spread=0)
    labels = labels_of(random_structure(aatype, 1), aatype, torch.full(structure.mask.shape, observed))
    leaves = {name: getattr(structure, name).clone().requires_grad_() for name in ("frames", "rigid_groups", "atom14")}
    structure = replace(structure, **leaves)
    error = backbone(structure, labels) + sidechain(structure, labels)
    error.sum().backward()
    for leaf in leaves.values():
        assert leaf.grad is not None
        assert torch.isfinite(leaf.grad).all()
        # A single C-alpha is always where its own frame expects it.
        assert bool(leaf.grad.any()) == (observed > 0 and not (leaf is structure.frames and len(residues) == 1))
    assert bool(error > 0) == (observed > 0)
