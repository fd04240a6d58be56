"""A training example is one crop of one chain in all its arrays, with fresh rows for each recycling pass."""

import operator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from data_pipeline.features.ground_truth import ground_truth
from data_pipeline.features.sample import SAMPLE_AXES
from data_pipeline.io.errors import InputError
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.sampling.crop import crop_labels
from data_pipeline.sampling.msa import BlockDeletion
from data_pipeline.sampling.sample import SamplingConfig
from data_pipeline.sampling.training import (
    ExampleConfig,
    TrainingExample,
    confident,
    finetuning,
    initial_training,
    training_example,
)
from tests.data_pipeline.sampling.samples import random_features, random_labels

SMALL = ExampleConfig(
    crop_size=16,
    sampling=SamplingConfig(max_msa_clusters=6, max_extra_msa=10, max_templates=2),
)
R = 40


def draw(config: ExampleConfig = SMALL, seed: int = 0, passes: int = 3, *, distilled: bool = False) -> TrainingExample:
    features, labels = random_features(60, R, 4), random_labels(R, is_distillation=distilled)
    return training_example(features, labels, config, np.random.default_rng(seed), passes)


@pytest.mark.parametrize("spatial", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_all_arrays_are_of_the_same_residues(seed: int, spatial: float) -> None:
    features, labels = random_features(60, R, 4), random_labels(R)
    example = draw(replace(SMALL, spatial_crop_probability=spatial), seed)
    crop = example.samples[0].residue_index  # numbers of the whole chain, which are its places
    assert len(crop) == 16
    assert (np.diff(crop) == 1).all() == (spatial == 0)
    expected = ground_truth(features.aatype[crop], crop_labels(labels, crop))
    for field in fields(expected):
        np.testing.assert_array_equal(getattr(example.truth, field.name), getattr(expected, field.name))
    for sample in example.samples:
        np.testing.assert_array_equal(sample.residue_index, crop)
        np.testing.assert_array_equal(sample.aatype, features.aatype[crop])
        np.testing.assert_array_equal(sample.true_msa[0], features.msa[0, crop])
        rows = {bytes(row[crop]) for row in features.msa}
        assert {bytes(row) for row in sample.true_msa.astype(np.int8)} <= rows
        templates = {bytes(template[crop]) for template in features.template_all_atom_positions}
        assert {bytes(template) for template in sample.template_all_atom_positions} <= templates


def test_passes_share_crop_and_templates_and_differ_in_rows_and_masks() -> None:
    one, two, three = draw().samples
    for name in ("residue_index", "aatype", "template_aatype", "template_all_atom_positions", "template_mask"):
        for other in (two, three):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert not np.array_equal(one.true_msa, two.true_msa)
    assert not np.array_equal(two.bert_mask, three.bert_mask)


def test_rows_deleted_for_one_pass_are_deleted_for_all() -> None:
    # Of 60 rows 5 blocks of 18 leave few; whatever the passes show comes from these.
    config = replace(SMALL, sampling=SamplingConfig(max_msa_clusters=60, max_extra_msa=60))
    for seed in range(5):
        shown = [{bytes(row) for row in sample.true_msa} for sample in draw(config, seed).samples]
        assert shown[0] == shown[1] == shown[2]
        assert len(shown[0]) < 50


def test_equal_generators_give_equal_examples_and_earlier_passes_do_not_depend_on_later_ones() -> None:
    first, again = draw(seed=7, passes=3), draw(seed=7, passes=2)
    for sample, same in zip(first.samples, again.samples, strict=False):
        for name in SAMPLE_AXES:
            np.testing.assert_array_equal(getattr(sample, name), getattr(same, name))
    assert not np.array_equal(draw(seed=1).samples[0].residue_index, draw(seed=2).samples[0].residue_index)


def test_one_example_in_ten_is_unclamped() -> None:
    config = replace(SMALL, crop_size=1, sampling=SamplingConfig(max_msa_clusters=1, max_extra_msa=1))
    clamped = [draw(config, seed, passes=1).use_clamped_fape for seed in range(300)]
    assert np.mean(clamped) == pytest.approx(0.9, abs=0.06)


def test_no_example_is_larger_than_the_sizes_told() -> None:
    for n, t in ((60, 4), (1, 0)):
        example = training_example(random_features(n, R, t), random_labels(R), SMALL, np.random.default_rng(0), 2)
        for sample in example.samples:
            for name, axes in SAMPLE_AXES.items():
                sizes = tuple(SMALL.sizes()[axis] for axis in axes)
                assert all(map(operator.le, getattr(sample, name).shape, sizes)), name
    assert SMALL.sizes() == {"r": 16, "s": 6, "e": 10, "t": 2}


def test_unsure_residues_of_predictions_have_no_atoms_to_be_compared_with() -> None:
    labels = random_labels(R, is_distillation=True)
    labels.confidence[:2] = 0.5, 0.4999  # the first is sure enough
    sure = labels.confidence >= 0.5
    assert 0 < sure.sum() < R
    kept = confident(labels, 0.5)
    np.testing.assert_array_equal(kept.all_atom_mask[sure], labels.all_atom_mask[sure])
    assert not kept.all_atom_mask[~sure].any()
    example = draw(replace(SMALL, crop_size=R), distilled=True)
    assert example.is_distillation
    sure = random_labels(R, is_distillation=True).confidence >= 0.5
    np.testing.assert_array_equal(example.truth.all_atom_mask[:, ATOM_ORDER["CA"]] > 0, sure)
    assert not example.truth.atom14_gt_exists[~sure].any()
    assert not example.truth.pseudo_beta_mask[~sure].any()


def test_masked_residues_are_drawn_from_the_profile_of_all_rows_also_deleted_ones() -> None:
    features = random_features(60, R, 4)
    features = replace(features, msa=np.where(np.arange(60)[:, None] > 0, np.int8(7), features.msa))
    sampling = replace(SMALL.sampling, masked_msa_fraction=1.0, uniform_prob=0.0, profile_prob=1.0, same_prob=0.0)
    deletion = BlockDeletion(fraction_per_block=1.0, blocks=50)
    config = replace(SMALL, sampling=sampling, block_deletion=deletion)
    example = training_example(features, random_labels(R), config, np.random.default_rng(0), 1)
    drawn = example.samples[0].msa_feat[0, :, :23].argmax(-1)
    assert len(example.samples[0].msa_mask) < 6
    assert (drawn == 7).mean() > 0.8


def test_experiments_keep_all_atoms_whatever_their_confidence() -> None:
    labels = replace(random_labels(R), confidence=np.zeros(R, np.float32))
    assert confident(labels, 0.5) is labels
    assert draw().resolution == 2.5


def test_alignments_of_predictions_are_thinned() -> None:
    none_deleted = replace(SMALL.block_deletion, blocks=0)
    config = replace(
        SMALL,
        block_deletion=none_deleted,
        distillation_msa_rows=7,
        sampling=SamplingConfig(max_msa_clusters=60, max_extra_msa=60),
    )
    assert len(draw(config, distilled=True).samples[0].true_msa) == 7
    assert len(draw(config, distilled=False).samples[0].true_msa) == 60


def test_features_and_labels_of_different_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="'random' has 40 residues and labels for 39; make its features again"):
        training_example(random_features(2, 40), random_labels(39), SMALL, np.random.default_rng(0), 1)


def test_chains_of_one_residue_and_one_row_are_examples() -> None:
    example = training_example(random_features(1, 1), random_labels(1), SMALL, np.random.default_rng(0), 1)
    assert example.samples[0].msa_feat.shape == (1, 1, 49)


def test_stages_have_alphafolds_sizes() -> None:
    first, second = initial_training(), finetuning()
    assert (first.crop_size, second.crop_size) == (256, 384)
    for stage, rows, extra in ((first, 128, 1024), (second, 512, 5120)):
        assert stage.sampling.max_msa_clusters + stage.sampling.max_templates == rows
        assert stage.sampling.max_extra_msa == extra
        assert (stage.max_template_hits, stage.max_passes, stage.distillation_msa_rows) == (20, 4, 1000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop_size": 0}, "crop_size must be at least 1, got 0"),
        ({"max_template_hits": -1}, "max_template_hits must be at least 0"),
        ({"unclamped_fraction": 1.1}, r"unclamped_fraction must be within 0\.\.1, got 1\.1"),
        ({"spatial_crop_probability": -0.1}, "spatial_crop_probability must be within"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExampleConfig(**settings)
