"""Samples of complexes are what DeepMind's program makes of the same random choices inside its network."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.assembly import ComplexFeatures, complex_features
from data_pipeline.features.sample import SAMPLE_AXES
from data_pipeline.sampling import msa
from data_pipeline.sampling.complex_sample import ComplexSample, Draw, complex_sample, draw
from data_pipeline.sampling.sample import SamplingConfig
from tests.data_pipeline.features.chains import stored_chain

FILE = Path(__file__).parents[2] / "parity" / "data" / "complex_sample.npz"
CONFIG = SamplingConfig(max_msa_clusters=9, max_extra_msa=10)


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    with np.load(FILE) as file:
        return dict(file)


@pytest.fixture
def features(stored: dict[str, np.ndarray]) -> ComplexFeatures:
    """Two chains of 7 and 6 residues with the stored alignment, and one template of the first chain."""
    r = stored["msa"].shape[1]
    masks = np.zeros((4, r, 37), np.float32)
    masks[0, :7, :5] = 1
    return ComplexFeatures(
        chain_names=("A", "B"),
        aatype=stored["msa"][0],
        residue_index=np.concatenate([np.arange(7), np.arange(6)]),
        asym_id=np.repeat([1, 2], [7, 6]),
        entity_id=np.repeat([1, 2], [7, 6]),
        sym_id=np.ones(r, np.int32),
        msa=stored["msa"],
        deletion_matrix=stored["deletion_matrix"],
        bert_mask=stored["blocks"],
        paired_rows=8,
        template_aatype=np.zeros((4, r), np.int8),
        template_all_atom_positions=np.ones((4, r, 37, 3), np.float32) * masks[..., None],
        template_all_atom_masks=masks,
    )


@pytest.fixture
def drawn(stored: dict[str, np.ndarray]) -> Draw:
    return Draw(order=stored["order"], masked=stored["masked"], hidden=stored["hidden"])


def test_msa_features_are_deepminds(features: ComplexFeatures, drawn: Draw, stored: dict[str, np.ndarray]) -> None:
    sample = complex_sample(features, CONFIG, drawn)
    np.testing.assert_allclose(sample.msa_feat, stored["msa_feat"], rtol=1e-6, atol=1e-6)
    extra = np.concatenate(
        [np.eye(23)[sample.extra_msa], sample.extra_has_deletion[..., None], sample.extra_deletion_value[..., None]], -1
    )
    np.testing.assert_allclose(extra, stored["extra_feat"], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(sample.extra_msa_mask, stored["extra_mask"])
    np.testing.assert_allclose(msa.msa_profile(stored["msa"]), stored["profile"], rtol=1e-6, atol=1e-7)
    # Rows that agree with no cluster, or with several alike, are among those that were compared.
    assert len(np.unique(stored["msa_feat"][..., 25:48])) > 30


def test_only_masked_positions_inside_the_blocks_are_asked_for(features: ComplexFeatures, drawn: Draw) -> None:
    sample = complex_sample(features, CONFIG, drawn)
    assert sample.template_mask.tolist() == [1, 0, 0, 0]
    chosen = drawn.order[:9]
    np.testing.assert_array_equal(sample.bert_mask, drawn.hidden & features.bert_mask[chosen])
    assert 0 < sample.bert_mask.sum() < drawn.hidden.sum()
    np.testing.assert_array_equal(sample.true_msa, features.msa[chosen])


def test_a_draw_begins_with_the_complex_and_is_repeatable(features: ComplexFeatures) -> None:
    first, again, other = (draw(features, CONFIG, np.random.default_rng(seed)) for seed in (1, 1, 2))
    for drawn in (first, other):
        assert drawn.order[0] == 0
        assert sorted(drawn.order) == [*range(len(features.msa))]
        assert drawn.masked.shape == drawn.hidden.shape == (9, 13)
        unmasked = features.msa[drawn.order[:9]]
        np.testing.assert_array_equal(drawn.masked[~drawn.hidden], unmasked[~drawn.hidden])
    np.testing.assert_array_equal(first.order, again.order)
    np.testing.assert_array_equal(first.masked, again.masked)
    assert not np.array_equal(first.order, other.order)


def test_masking_hides_the_share_that_is_asked_for(features: ComplexFeatures) -> None:
    rows = ("msa", "deletion_matrix", "bert_mask")
    wide = replace(features, **{name: np.tile(getattr(features, name), (40, 1)) for name in rows})
    config = SamplingConfig(max_msa_clusters=900, masked_msa_fraction=0.3)
    assert draw(wide, config, np.random.default_rng(0)).hidden.mean() == pytest.approx(0.3, abs=0.02)


def test_a_complex_without_other_rows_has_one_masked_extra_row(features: ComplexFeatures) -> None:
    alone = replace(
        features,
        msa=features.msa[:1],
        deletion_matrix=features.deletion_matrix[:1],
        bert_mask=features.bert_mask[:1],
    )
    sample = complex_sample(alone, CONFIG, draw(alone, CONFIG, np.random.default_rng(0)))
    assert sample.extra_msa.shape == (1, 13)
    assert not sample.extra_msa_mask.any()
    assert np.isfinite(sample.msa_feat).all()


def test_a_sample_has_the_axes_of_a_monomers_and_its_chains(reference: Path) -> None:
    complex_ = complex_features([stored_chain(reference, letter, letter) for letter in "AB"])
    config = SamplingConfig(max_msa_clusters=20, max_extra_msa=30)
    sample = complex_sample(complex_, config, draw(complex_, config, np.random.default_rng(0)))
    sizes = {"r": 143, "s": 20, "e": 30, "t": 4}
    for name, axes in SAMPLE_AXES.items():
        assert getattr(sample, name).shape[: len(axes)] == tuple(sizes[axis] for axis in axes), name
    assert sample.target_feat.shape == (143, 21)
    own = {"asym_id", "entity_id", "sym_id", "template_spans_chains"}
    assert {field.name for field in fields(ComplexSample)} - SAMPLE_AXES.keys() == own
    assert sample.template_mask.tolist() == [1, 1, 1, 1]
