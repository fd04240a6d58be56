"""A draw has the sizes, types and freshness that the model expects, at every depth of the MSA."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from data_pipeline.features.sample import SAMPLE_AXES, Sample
from data_pipeline.residues import MASKED, UNKNOWN
from data_pipeline.sampling.sample import SamplingConfig, draw, draw_sample, smallest
from tests.data_pipeline.sampling.samples import random_features

CONFIG = SamplingConfig(max_msa_clusters=6, max_extra_msa=5, max_templates=2)


@pytest.mark.parametrize(
    ("n", "t", "sizes"),
    [
        (30, 4, {"s": 6, "e": 5, "t": 2}),
        (8, 1, {"s": 6, "e": 2, "t": 1}),
        (6, 0, {"s": 6, "e": 1, "t": 0}),
        (1, 0, {"s": 1, "e": 1, "t": 0}),
    ],
)
def test_sizes_are_what_there_is_up_to_the_config(n: int, t: int, sizes: dict[str, int]) -> None:
    sample = draw_sample(random_features(n, 9, t), CONFIG, np.random.default_rng(0))
    for name, axes in SAMPLE_AXES.items():
        array = getattr(sample, name)
        assert array.shape[: len(axes)] == tuple((sizes | {"r": 9})[axis] for axis in axes), name
        assert array.dtype in (np.int32, np.float32), name
    assert sample.extra_msa_mask.all() == (n > 6)
    assert sample.extra_msa_mask.any() == (n > 6)


def test_rows_are_assigned_to_clusters_as_the_model_sees_them() -> None:
    """Of two centres that are masked everywhere no row is nearer to one, so that the first has all of them."""
    features = random_features(30, 9)
    config = replace(
        CONFIG, max_msa_clusters=2, masked_msa_fraction=1.0, uniform_prob=0.0, profile_prob=0.0, same_prob=0.0
    )
    sample = draw_sample(features, config, np.random.default_rng(0))
    masks_in_profile = sample.msa_feat[..., 25 + MASKED]
    np.testing.assert_allclose(masks_in_profile[0], 1 / 29, rtol=1e-3)
    np.testing.assert_allclose(masks_in_profile[1], 1, rtol=1e-3)


def test_no_templates_are_used_when_the_config_wants_none() -> None:
    sample = draw_sample(random_features(3, 9, 4), SamplingConfig(max_templates=0), np.random.default_rng(0))
    assert sample.template_all_atom_positions.shape == (0, 9, 37, 3)
    assert sample.template_mask.shape == (0,)


def test_the_target_comes_first_and_only_hidden_positions_change() -> None:
    features = random_features(40, 50)
    sample = draw_sample(features, CONFIG, np.random.default_rng(0))
    np.testing.assert_array_equal(sample.true_msa[0], features.aatype)
    shown = sample.msa_feat[..., : MASKED + 1].argmax(axis=-1)
    hidden = sample.bert_mask > 0
    np.testing.assert_array_equal(shown[~hidden], sample.true_msa[~hidden])
    assert (shown[hidden] == MASKED).mean() > 0.5
    # Every extra row counts in exactly one cluster, whether the extra-MSA stack reads it or not.
    members = sample.msa_feat[..., MASKED + 3 : -1]
    np.testing.assert_allclose(members.sum(axis=-1), 1, atol=1e-5)


def test_extra_rows_join_the_cluster_they_resemble() -> None:
    alone = random_features(10, 12)
    msa = np.where(np.arange(10)[:, None] == np.arange(12), 2, 1).astype(np.int8)  # rows 1..9 differ in one column
    msa[0] = 0
    features = replace(alone, msa=msa, deletion_matrix=np.repeat(np.arange(10), 12).reshape(10, 12))
    config = SamplingConfig(max_msa_clusters=2, masked_msa_fraction=0.0)
    sample = draw_sample(features, config, np.random.default_rng(0))
    profile = sample.msa_feat[..., MASKED + 3 : -1]
    np.testing.assert_allclose(profile[0, :, 0], 1, atol=2e-6)
    np.testing.assert_allclose(profile[1, :, 1], [1, *([8 / 9] * 9), 1, 1], atol=2e-6)
    # The target's cluster has no deletions; those of the nine other rows, 1..9, are 5 on average.
    np.testing.assert_allclose(sample.msa_feat[:, 0, -1], [0, np.arctan(5 / 3) * 2 / np.pi], atol=1e-6)


def test_every_cluster_and_extra_row_is_a_row_of_the_msa_once() -> None:
    features = random_features(11, 20)
    sample = draw_sample(features, CONFIG, np.random.default_rng(0))
    drawn = np.concatenate([sample.true_msa, sample.extra_msa])
    assert sorted(map(bytes, drawn.astype(np.int8))) == sorted(map(bytes, features.msa))
    counts = {bytes(row): count for row, count in zip(features.msa, features.deletion_matrix, strict=True)}
    for row, has_deletion in zip(sample.extra_msa, sample.extra_has_deletion, strict=True):
        np.testing.assert_array_equal(has_deletion, counts[bytes(row.astype(np.int8))] > 0)


def test_equal_generators_draw_equal_samples_and_each_draw_is_fresh() -> None:
    features = random_features(40, 20)
    rng = np.random.default_rng(3)
    first, second = draw_sample(features, CONFIG, rng), draw_sample(features, CONFIG, rng)
    again = draw_sample(features, CONFIG, np.random.default_rng(3))
    for field in fields(first):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(first, field.name))
    assert not np.array_equal(first.true_msa, second.true_msa)
    assert not np.array_equal(first.bert_mask, second.bert_mask)


@pytest.mark.parametrize("crop", [np.arange(5, 14), np.array([0, 3, 4, 19]), np.array([2, 3, 5, 6])])
def test_a_cropped_draw_is_the_crop_of_the_draw(crop: np.ndarray) -> None:
    features = random_features(40, 20, 3)
    whole = draw_sample(features, CONFIG, np.random.default_rng(3))
    cropped = draw(features, CONFIG, np.random.default_rng(3), crop=crop).sample()
    for name, axes in SAMPLE_AXES.items():
        expected = getattr(whole, name)
        expected = expected.take(crop, axis=axes.index("r")) if "r" in axes else expected
        assert getattr(cropped, name).dtype == expected.dtype, name
        np.testing.assert_array_equal(getattr(cropped, name), expected, err_msg=name)


def test_hidden_residues_are_replaced_with_the_profile_that_is_given() -> None:
    features = random_features(40, 20)
    config = SamplingConfig(masked_msa_fraction=1.0, uniform_prob=0.0, profile_prob=1.0, same_prob=0.0)
    profile = np.zeros((20, 22), np.float32)
    profile[:, 7] = 1
    sample = draw(features, config, np.random.default_rng(0), profile=profile).sample()
    assert (sample.msa_feat[..., 7] == 1).all()


def test_drawing_leaves_the_features_alone() -> None:
    features = random_features(20, 9, 1)
    before = {field.name: np.copy(getattr(features, field.name)) for field in fields(features)}
    sample = draw_sample(features, SamplingConfig(max_msa_clusters=3, unknown_fraction=0.5), np.random.default_rng(0))
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(features, name), value)
    assert (sample.aatype == UNKNOWN).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_msa_clusters": 0}, "max_msa_clusters must be at least 1, got 0"),
        ({"max_extra_msa": 0}, "max_extra_msa must be at least 1"),
        ({"max_templates": -1}, "max_templates must be at least 0"),
        ({"masked_msa_fraction": 1.5}, r"masked_msa_fraction must be within 0\.\.1, got 1\.5"),
        ({"uniform_prob": 0.5, "profile_prob": 0.5}, "must be at most 1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingConfig(**settings)


def test_where_no_extra_row_is_left_the_target_stands_in_with_what_is_hidden() -> None:
    features = random_features(3, 40, 0)
    config = SamplingConfig(
        max_msa_clusters=3, masked_msa_fraction=0.5, same_prob=0.0, uniform_prob=0.0, profile_prob=0.0
    )
    without = draw_sample(features, config, np.random.default_rng(0))
    assert without.extra_msa_mask.shape == (1, 40)
    assert not without.extra_msa_mask.any()
    sample = draw_sample(features, replace(config, target_as_extra=True), np.random.default_rng(0))
    assert sample.extra_msa_mask.all()
    hidden = sample.bert_mask[0] > 0
    assert hidden.any()
    np.testing.assert_array_equal(sample.extra_msa[0], np.where(hidden, MASKED, features.msa[0]))
    # Nothing else is another draw.
    np.testing.assert_array_equal(sample.msa_feat, without.msa_feat)
    deeper = random_features(5, 40, 0)
    for field in fields(Sample):
        one, two = (
            getattr(draw_sample(deeper, replace(config, target_as_extra=flag), np.random.default_rng(0)), field.name)
            for flag in (False, True)
        )
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("highest", "kind"),
    [(0, "u1"), (255, "u1"), (256, "i2"), (32767, "i2"), (32768, "i4"), (2**31 - 1, "i4"), (2**31, "i8")],
)
def test_counts_are_kept_in_the_smallest_type_that_holds_them(highest: int, kind: str) -> None:
    found = smallest(np.array([[0, highest]], np.int64))
    assert found.dtype == kind
    assert found.tolist() == [[0, highest]]
    assert smallest(np.zeros((0, 3), np.int64)).dtype == np.uint8


@pytest.mark.parametrize(
    ("settings", "rows", "expected"),
    [
        ({}, 6, False),
        ({}, 7, True),  # the choice of cluster centres
        ({"masked_msa_fraction": 0.1}, 1, True),
        ({"unknown_fraction": 0.1}, 1, True),
    ],
)
def test_samples_depend_on_chance_where_something_is_drawn(
    settings: dict[str, float], rows: int, expected: bool
) -> None:
    config = replace(CONFIG, **{"masked_msa_fraction": 0.0, **settings})  # type: ignore[arg-type]
    assert config.depends_on_chance(rows) is expected
