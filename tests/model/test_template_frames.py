"""The structure module starts where the first template is, and its directions are those of the template."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from data_pipeline.io.config import ConfigError
from data_pipeline.residues import ATOM_ORDER
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.config import ModelConfig, TemplateConfig
from helixfold.model.geometry.rigid import Rigid
from helixfold.model.template_frames import backbone_frames, initial_frames
from helixfold.model.templates import template_pair_features
from helixfold.ops.structure.quaternions import quaternion_to_rotation
from tests.support.networks import random_batch, relative_error, tiny_config, with_every_parameter_random

R, UNIT = 9, 10.0
UNIT_VECTOR = slice(84, 87)  # among the 88 features of an edge
ALPHA = ATOM_ORDER["CA"]


def without_residues(batch: Batch, residues: list[int], template: int = 0) -> Batch:
    masks = batch.template_all_atom_masks.clone()
    masks[:, template, residues] = 0
    return replace(batch, template_all_atom_masks=masks)


def with_frames(config: ModelConfig) -> ModelConfig:
    assert config.template is not None
    return replace(config, template=replace(config.template, unit_vectors=True, initial_frames=True))


def moved(batch: Batch, motion: Rigid) -> Batch:
    positions = motion.apply(batch.template_all_atom_positions)
    return replace(batch, template_all_atom_positions=positions)


def motion() -> Rigid:
    rotation = quaternion_to_rotation(normalize(torch.tensor([0.3, -1.0, 0.4, 0.8]), dim=0))
    return Rigid(rotation=rotation, translation=torch.tensor([30.0, -4.0, 11.0]))


def alphas(frames_translation: Tensor) -> Tensor:
    return torch.cdist(frames_translation, frames_translation)


def test_residues_start_at_the_backbone_of_the_first_template() -> None:
    batch = random_batch(residues=R, templates=2)
    found = initial_frames(batch, UNIT)
    expected = backbone_frames(batch.template_all_atom_positions[:, 0])
    torch.testing.assert_close(found.rotation, expected.rotation, atol=1e-5, rtol=0)
    positions = batch.template_all_atom_positions[:, 0, :, ALPHA]
    torch.testing.assert_close(UNIT * found.translation, positions - positions.mean(1, keepdim=True))


def test_a_residue_without_a_backbone_starts_at_the_nearest_that_has_one() -> None:
    batch = random_batch(residues=R, templates=2)
    whole = initial_frames(batch, UNIT)
    found = initial_frames(without_residues(batch, [0, 3, 4, 5, 8]), UNIT)
    for residue, nearest in enumerate([1, 1, 2, 2, 2, 6, 6, 7, 7]):
        torch.testing.assert_close(found.quaternion[0, residue], whole.quaternion[0, nearest])
        torch.testing.assert_close(
            found.translation[0, residue] - found.translation[0, 1],
            whole.translation[0, nearest] - whole.translation[0, 1],
        )
    # The centre is that of what the template has.
    torch.testing.assert_close(found.translation[0, [1, 2, 6, 7]].mean(0), torch.zeros(3), atol=1e-6, rtol=0)


@pytest.mark.parametrize("atom", ["N", "CA", "C"])
def test_half_a_backbone_is_none(atom: str) -> None:
    batch = random_batch(residues=R)
    masks = batch.template_all_atom_masks.clone()
    masks[:, 0, 4, ATOM_ORDER[atom]] = 0
    found = initial_frames(replace(batch, template_all_atom_masks=masks), UNIT)
    assert (found.translation[0, 4] == found.translation[0, 3]).all()
    assert (found.translation[0, 5] != found.translation[0, 3]).any()


def test_without_a_template_residues_start_at_the_origin_sample_by_sample() -> None:
    batch = random_batch(residues=R)
    alone = replace(batch, template_mask=torch.zeros_like(batch.template_mask))
    empty = without_residues(batch, list(range(R)))
    identity = torch.tensor([1.0, 0, 0, 0, 0, 0, 0]).expand(1, R, 7)
    for without in (alone, empty):
        assert (initial_frames(without, UNIT).to_tensor() == identity).all()
    both = Batch(
        **{
            name: torch.cat([getattr(batch, name), getattr(alone, name)])
            for name in vars(batch)
            if getattr(batch, name) is not None
        }
    )
    found = initial_frames(both, UNIT).to_tensor()
    assert (found[1:] == identity).all()
    assert (found[:1] == initial_frames(batch, UNIT).to_tensor()).all()


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(st.booleans(), min_size=R, max_size=R), st.integers(0, 2**31))
def test_no_residue_is_nearer_than_the_one_whose_frame_is_taken(present: list[bool], seed: int) -> None:
    batch = random_batch(residues=R, seed=seed)
    absent = [residue for residue in range(R) if not present[residue]]
    found = initial_frames(without_residues(batch, absent), UNIT).translation[0]
    there = [residue for residue in range(R) if present[residue]]
    for residue in range(R if there else 0):
        least = min(abs(residue - other) for other in there)
        candidates = [found[other] for other in there if abs(residue - other) == least]
        assert any((found[residue] == candidate).all() for candidate in candidates)


def test_an_untrained_network_returns_the_template_it_starts_from_and_a_trained_one_not() -> None:
    batch = random_batch(residues=R)
    model = AlphaFold(with_frames(tiny_config())).eval()
    with torch.no_grad():
        found = model(Whole(), [batch]).structure.positions[0, :, :3]
        template = batch.template_all_atom_positions[0, 0, :, ALPHA]
        assert (alphas(found[:, ALPHA]) - alphas(template)).abs().max() < 1e-4
        trained = with_every_parameter_random(with_frames(tiny_config()))(Whole(), [batch]).structure.positions[
            0, :, ALPHA
        ]
    assert (alphas(trained) - alphas(template)).abs().max() > 0.1


def test_a_template_may_stand_anywhere() -> None:
    batch = random_batch(residues=R)
    pairs = [template_pair_features(each, slice(0, 2), unit_vectors=True) for each in (batch, moved(batch, motion()))]
    assert pairs[0][..., UNIT_VECTOR].norm(dim=-1).amax() > 0.99
    torch.testing.assert_close(pairs[1], pairs[0], atol=1e-4, rtol=0)
    # Where residues start is the same but for one motion of all.
    frames = [initial_frames(each, UNIT).rigid() for each in (batch, moved(batch, motion()))]
    places = [each.invert_apply_to_columns(each.translation.mT[:, None].expand(1, R, 3, R)) for each in frames]
    torch.testing.assert_close(places[1], places[0], atol=1e-4, rtol=0)


def test_a_direction_is_that_of_the_other_residue_in_the_first_ones_frame() -> None:
    batch = random_batch(residues=R)
    found = template_pair_features(batch, slice(0, 1), slice(2, 5), unit_vectors=True)[0, ..., UNIT_VECTOR]
    positions = batch.template_all_atom_positions[0, 0]
    for row, residue in enumerate(range(2, 5)):
        nitrogen, alpha, carbon = positions[residue, :3].double()
        forward = normalize(carbon - alpha, dim=0)
        across = normalize(torch.linalg.cross(forward, nitrogen - alpha), dim=0)
        axes = torch.stack([forward, torch.linalg.cross(across, forward), across])
        for other in set(range(R)) - {residue}:
            expected = normalize(axes @ (positions[other, ALPHA].double() - alpha), dim=0)
            torch.testing.assert_close(found[row, other].double(), expected, atol=1e-4, rtol=0)
        assert (found[row, residue] == 0).all()


def test_both_settings_change_the_result_and_slabs_do_not() -> None:
    batch, config = random_batch(residues=R), tiny_config()
    assert config.template is not None
    results = {}
    for changes in ({}, {"unit_vectors": True}, {"initial_frames": True}):
        template = replace(config.template, **changes)
        model = with_every_parameter_random(replace(config, template=template))
        with torch.no_grad():
            results[str(changes)] = model(Whole(), [batch])
            slabs = model(Slabs(rows=4), [batch])
        assert relative_error(slabs.structure.positions, results[str(changes)].structure.positions) < 1e-4
    plain, vectors, frames = results.values()
    assert relative_error(vectors.representations.pair, plain.representations.pair) > 1e-3
    assert relative_error(frames.representations.pair, plain.representations.pair) == 0
    assert relative_error(frames.structure.positions, plain.structure.positions) > 1e-2


def test_gradients_of_a_network_that_starts_from_a_template_are_finite() -> None:
    model = with_every_parameter_random(with_frames(tiny_config())).train()
    masks = random_batch(residues=R).template_all_atom_masks.clone()
    masks[:, :, 2:5] = 0
    batch = replace(random_batch(residues=R), template_all_atom_masks=masks)
    model(Whole(), [batch]).structure.positions.square().sum().backward()
    gradients = [parameter.grad for parameter in model.structure_module.parameters() if parameter.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_settings_are_for_alphafold_2_alone() -> None:
    for changes in ({"unit_vectors": True}, {"initial_frames": True}):
        with pytest.raises(ValueError, match=r"unit_vectors and template\.initial_frames need method=monomer"):
            ModelConfig(method="multimer", template=TemplateConfig(**changes))


def test_residues_of_the_template_move_by_a_part_of_their_update() -> None:
    batch = without_residues(random_batch(residues=R), [3, 4])
    config, places = with_frames(tiny_config()), []
    assert config.template is not None
    for factor in (1.0, 0.1, 0.0):
        model = with_every_parameter_random(
            replace(config, template=replace(config.template, update_factor=factor)), seed=3
        )
        with torch.no_grad():
            places.append(model(Whole(), [batch]).structure.positions[0, :, ALPHA])
    template = batch.template_all_atom_positions[0, 0, :, ALPHA]
    there = [residue for residue in range(R) if residue not in (3, 4)]
    moves = [(alphas(each[there]) - alphas(template[there])).abs().max().item() for each in places]
    assert moves[0] > 2 * moves[1] > 0.01
    assert moves[2] < 1e-3
    assert alphas(places[2])[3, 4] > 0.1  # both have moved from where residues 2 and 5 are


def test_plddt_of_residues_of_the_template_has_a_slope_of_its_own() -> None:
    batch = without_residues(random_batch(residues=R), [3, 4])
    config, logits = with_frames(tiny_config()), []
    assert config.template is not None
    for slope in (0.0, 4.0):
        changed = replace(config, template=replace(config.template, plddt_slope=slope))
        with torch.no_grad():
            logits.append(with_every_parameter_random(changed, seed=3)(Whole(), [batch]).logits.lddt)
    plain, sloped = (confidence.plddt(each)[0] for each in logits)
    there = torch.tensor([residue not in (3, 4) for residue in range(R)])
    torch.testing.assert_close(plain[~there], sloped[~there])
    assert (sloped - plain)[there].min() > 1
    first, *_, last = (logits[1] - logits[0])[0, 0]
    bins = logits[0].shape[-1]
    torch.testing.assert_close(last - first, torch.tensor(4 * (1 - 1 / bins)))


@pytest.mark.parametrize(
    "changes", [{"update_factor": 1.5}, {"update_factor": 0.5}, {"update_factor": -0.1}, {"plddt_slope": 1.0}]
)
def test_a_factor_of_updates_is_a_share_and_needs_a_start(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="update_factor"):
        TemplateConfig(initial_frames=changes.get("update_factor") in (1.5, -0.1), **changes)
