"""Templates of training examples: corrupted copies are as far off as asked, and come as often as asked."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from data_pipeline.io.config import ConfigError
from data_pipeline.residues import ATOM_ORDER, GAP, RESTYPES
from data_pipeline.sampling.sample import SamplingConfig
from data_pipeline.sampling.template_augmentation import (
    OWN_STRUCTURE,
    TemplateAugmentation,
    corrupted_copy,
    displacements,
    example_templates,
    substituted,
)
from data_pipeline.sampling.templates import choose_templates
from data_pipeline.sampling.training import ExampleConfig, training_example
from tests.data_pipeline.sampling.samples import random_features, random_labels

R = 80
FEATURES, LABELS = random_features(6, R, 5), random_labels(R)
ALONE = random_features(6, R, 0)
MIXED = TemplateAugmentation(none_fraction=0.5, own_fraction=0.4)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def names(settings: TemplateAugmentation, seed: int, features=FEATURES, slots: int = 2) -> tuple[str, ...]:  # type: ignore[no-untyped-def]
    found = example_templates(features, LABELS, settings, rng(seed), max_hits=4, max_templates=slots)
    return found["template_domain_names"]


def test_without_augmentation_templates_are_drawn_as_before() -> None:
    for seed in range(20):
        chosen = choose_templates(5, 4, 2, rng(seed))
        assert names(TemplateAugmentation(), seed) == tuple(map(str, chosen))


def test_examples_have_none_their_own_or_relatives_in_the_shares_asked_for() -> None:
    drawn = [names(MIXED, seed) for seed in range(600)]
    own = np.mean([each == (OWN_STRUCTURE,) for each in drawn])
    assert np.mean([not each for each in drawn]) == pytest.approx(0.5, abs=0.07)
    assert own == pytest.approx(0.2, abs=0.06)
    relatives = [each for each in drawn if each and each != (OWN_STRUCTURE,)]
    assert {len(each) for each in relatives} == {1, 2}
    assert {name for each in relatives for name in each} == {"0", "1", "2", "3"}  # the best four of five


def test_a_chain_without_relatives_has_its_own_structure_or_nothing() -> None:
    drawn = [names(MIXED, seed, ALONE) for seed in range(200)]
    assert set(drawn) == {(), (OWN_STRUCTURE,)}
    assert np.mean([not each for each in drawn]) == pytest.approx(0.5, abs=0.1)
    assert {names(replace(MIXED, own_fraction=0), seed, ALONE) for seed in range(20)} == {()}
    assert {names(MIXED, seed, slots=0) for seed in range(20)} == {()}


@pytest.mark.parametrize("size", [0.2, 2.0])
def test_residues_are_displaced_by_the_size_asked_for_and_neighbours_alike(size: float) -> None:
    drawn = np.stack([displacements(200, size, rng(seed)) for seed in range(60)])
    assert np.sqrt((drawn**2).sum(-1).mean()) == pytest.approx(size, rel=0.08)
    steps = np.sqrt((np.diff(drawn, axis=1) ** 2).sum(-1).mean())
    assert steps < size


def test_a_copy_is_cut_masked_displaced_and_has_other_residues() -> None:
    settings = TemplateAugmentation(least_noise=0.5, most_noise=0.5, least_kept=0.5, most_masked=0.5)
    shares, changes, moves, turns = [], [], [], []
    for seed in range(80):
        copy = corrupted_copy(FEATURES.aatype, LABELS.all_atom_positions, LABELS.all_atom_mask, settings, rng(seed))
        left = copy.aatype != GAP
        np.testing.assert_array_equal(left, copy.masks.any(axis=1))
        assert not copy.positions[~left].any()
        assert (copy.masks <= LABELS.all_atom_mask).all()
        there = copy.masks > 0
        moved = np.linalg.norm(copy.positions - LABELS.all_atom_positions, axis=-1)
        # A residue stays rigid, and is turned.
        whole = there[left.argmax()]
        before, after = (array[left.argmax()][whole] for array in (LABELS.all_atom_positions, copy.positions))
        np.testing.assert_allclose(pdist(after), pdist(before), atol=1e-4)
        turns.append(np.ptp(np.linalg.norm(after - before, axis=-1)))
        other = left & (copy.aatype != FEATURES.aatype)
        assert not copy.masks[other][:, ATOM_ORDER["CG"]].any()
        shares.append(left.mean())
        changes.append(other.sum() / left.sum())
        moves.append(np.sqrt((moved[left, ATOM_ORDER["CA"]] ** 2).mean()))
    assert min(shares) < 0.45
    assert max(shares) > 0.8
    assert min(turns) > 1e-3
    assert np.mean(changes) == pytest.approx(0.4, abs=0.08)
    assert max(changes) > 0.6
    assert np.mean(moves) == pytest.approx(0.5, rel=0.15)


def test_the_more_residues_differ_the_farther_a_copy_is_off_if_asked_for() -> None:
    settings = TemplateAugmentation(own_fraction=1.0, least_kept=1.0, most_masked=0.0, noise_by_identity=True)
    alpha, found = ATOM_ORDER["CA"], []
    for seed in range(200):
        aatype = FEATURES.aatype
        copy = corrupted_copy(aatype, LABELS.all_atom_positions, LABELS.all_atom_mask, settings, rng(seed))
        moved = copy.positions[:, alpha] - LABELS.all_atom_positions[:, alpha]
        found.append(((copy.aatype != aatype).mean(), np.sqrt(np.square(moved).sum(-1).mean())))
    share, noise = np.transpose(found)
    far, near = noise[share > 0.6], noise[share < 0.2]
    assert np.median(near) == pytest.approx(0.48, rel=0.2)  # 0.4 exp(1.87 h) for a mean h of 0.1
    assert np.median(far) == pytest.approx(1.48, rel=0.2)
    assert 0.1 < noise.min() < noise.max() < 2.8  # of one draw; the size that is drawn is from 0.2 to 2


def test_glycine_gains_and_keeps_no_c_beta_of_another_type() -> None:
    glycine = RESTYPES.index("G")
    aatype = np.full(R, glycine, np.int32)
    mask = np.ones((R, 37), np.float32)
    settings = TemplateAugmentation(most_substituted=1.0, most_masked=0.0, least_kept=1.0)
    copy = corrupted_copy(aatype, LABELS.all_atom_positions, mask, settings, rng(0))
    other = copy.aatype != glycine
    assert other.any()
    assert not copy.masks[other, ATOM_ORDER["CB"]].any()


def test_substitutions_are_those_of_relatives_and_never_the_type_itself() -> None:
    leucine, unknown = RESTYPES.index("L"), 20
    drawn = substituted(np.full(4000, leucine), rng(0))
    counts = np.bincount(drawn, minlength=20)
    assert counts[leucine] == 0
    assert RESTYPES[counts.argmax()] in "MI"
    assert counts[RESTYPES.index("M")] > 4 * counts[RESTYPES.index("D")]
    assert (substituted(np.full(5, unknown), rng(0)) == unknown).all()


def test_examples_carry_the_templates_into_their_samples() -> None:
    config = ExampleConfig(
        crop_size=R,
        sampling=SamplingConfig(max_msa_clusters=4, max_extra_msa=4, max_templates=2),
        template_augmentation=TemplateAugmentation(own_fraction=1.0),
    )
    sample = training_example(FEATURES, LABELS, config, rng(3), 1).samples[0]
    assert sample.template_aatype.shape == (1, R)
    assert 0 < (sample.template_aatype != GAP).mean() <= 1
    again = training_example(FEATURES, LABELS, config, rng(3), 1).samples[0]
    np.testing.assert_array_equal(sample.template_all_atom_positions, again.template_all_atom_positions)


@pytest.mark.parametrize("wrong", [{"none_fraction": 1.5}, {"least_noise": 0}, {"least_noise": 3.0}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        TemplateAugmentation(**wrong)


def test_the_arrays_of_relatives_are_of_the_same_templates() -> None:
    numbered = replace(FEATURES, template_sum_probs=np.arange(5, dtype=np.float32)[:, None])
    for seed in range(10):
        found = example_templates(numbered, LABELS, TemplateAugmentation(), rng(seed), max_hits=4, max_templates=2)
        rows = [int(name) for name in found["template_domain_names"]]
        assert found["template_sum_probs"].tolist() == [[row] for row in rows]
        np.testing.assert_array_equal(found["template_aatype"], FEATURES.template_aatype[rows])
        np.testing.assert_array_equal(found["template_all_atom_masks"], FEATURES.template_all_atom_masks[rows])


def test_residues_that_were_not_observed_are_gaps_of_a_copy() -> None:
    mask = np.ones((R, 37), np.float32)
    mask[10:20] = 0
    settings = TemplateAugmentation(most_substituted=0.0, most_masked=0.0, least_kept=1.0)
    aatype = np.full(R, RESTYPES.index("L"), np.int32)
    copy = corrupted_copy(aatype, LABELS.all_atom_positions, mask, settings, rng(0))
    assert np.flatnonzero(copy.aatype == GAP).tolist() == list(range(10, 20))
    assert not copy.positions[10:20].any()
