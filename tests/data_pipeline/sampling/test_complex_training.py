"""An example of a complex is a crop with the truth of every equal chain, drawn from its generator alone."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.labels import ChainLabels
from data_pipeline.io.errors import InputError
from data_pipeline.residues import ATOM37_MASK, GAP, MASKED
from data_pipeline.sampling.complex_training import complex_example, complex_truth
from data_pipeline.sampling.crop import crop_labels
from data_pipeline.sampling.sample import SamplingConfig
from data_pipeline.sampling.training import ExampleConfig, TrainingExample
from tests.support.complex_targets import feature_set

CONFIG = ExampleConfig(
    crop_size=12,
    spatial_crop_probability=0.5,
    sampling=SamplingConfig(max_msa_clusters=3, max_extra_msa=4, max_templates=4, target_as_extra=True),
)


def a_complex(chains: str = "ABA") -> tuple[ComplexFeatures, ChainLabels]:
    features = feature_set(chains).multimer
    random = np.random.default_rng(0)
    mask = ATOM37_MASK[features.aatype] * (random.random((len(features.aatype), 37)) < 0.9)
    positions = 5 * random.normal(size=(*mask.shape, 3))
    labels = ChainLabels(
        all_atom_positions=(positions * mask[..., None]).astype(np.float32),
        all_atom_mask=mask.astype(np.float32),
        confidence=np.ones(len(mask), np.float32),
        resolution=2.0,
        is_distillation=False,
    )
    return features, labels


def example(seed: int = 0, chains: str = "ABA", passes: int = 1, **changed: Any) -> TrainingExample:
    given = a_complex(chains)
    return complex_example("1abc", *given, replace(CONFIG, **changed), np.random.default_rng(seed), passes)


@given(seed=st.integers(0, 200), chains=st.sampled_from(["A", "AA", "ABA", "BAAB"]))
def test_samples_and_labels_are_of_the_same_residues(seed: int, chains: str) -> None:
    found = example(seed, chains)
    features, labels = a_complex(chains)
    (sample,) = found.samples
    r = min(12, len(features.aatype))
    assert sample.aatype.shape == (r,)
    assert sample.template_mask.shape == (4,)
    # Chain, number and type say which residues of the whole complex these are.
    numbers = list(zip(features.asym_id.tolist(), features.residue_index.tolist(), strict=True))
    crop = [
        numbers.index(each)
        for each in zip(sample.asym_id.tolist(), sample.residue_index.tolist(), strict=True)  # type: ignore[attr-defined]
    ]
    assert sorted(crop) == crop
    np.testing.assert_array_equal(found.truth.all_atom_positions, labels.all_atom_positions[crop])
    np.testing.assert_array_equal(found.truth.aatype, features.aatype[crop])
    assert ((sample.true_msa != GAP).any(1)).all()


@pytest.mark.parametrize("chains", ["A", "ABA", "BAAB", "AABAA"])
@pytest.mark.parametrize("shown", ["all chains", "the first", "the last"])
def test_every_copy_of_a_chain_has_its_own_atoms(chains: str, shown: str) -> None:
    features, labels = a_complex(chains)
    chain = {"the first": 1, "the last": features.asym_id.max()}.get(shown)
    among = np.flatnonzero((features.asym_id == chain) | (chain is None))
    crop = np.sort(np.random.default_rng(1).permutation(among)[:7])
    truth = complex_truth(features, labels, crop)
    # Also of copies that the crop does not show.
    copies = [features.asym_id[features.entity_id == entity] for entity in features.entity_id[crop]]
    assert len(truth.copies_mask) == max(len(set(each.tolist())) for each in copies)
    for place, residue in enumerate(crop):
        entity, number = features.entity_id[residue], features.residue_index[residue]
        for copy in range(len(truth.copies_mask)):
            same = (features.entity_id == entity) & (features.sym_id == copy + 1) & (features.residue_index == number)
            if not same.any():
                assert not truth.copies_mask[copy, place].any()
                continue
            np.testing.assert_array_equal(truth.copies_mask[copy, place], labels.all_atom_mask[same][0])
            np.testing.assert_array_equal(truth.copies_positions[copy, place], labels.all_atom_positions[same][0])


def test_equal_generators_give_equal_examples_and_passes_differ() -> None:
    one, other = example(3, passes=2), example(3, passes=2)
    for field in fields(one.samples[0]):
        for first, second in zip(one.samples, other.samples, strict=True):
            np.testing.assert_array_equal(getattr(first, field.name), getattr(second, field.name))
    assert not np.array_equal(one.samples[0].msa_feat, one.samples[1].msa_feat)


def test_an_alignment_without_other_rows_has_the_masked_row_as_an_extra_one() -> None:
    sampling = replace(CONFIG.sampling, max_msa_clusters=99, masked_msa_fraction=1.0, same_prob=0.0, uniform_prob=0.0)
    sampling = replace(sampling, profile_prob=0.0)
    (sample,) = example(sampling=sampling).samples
    assert (sample.extra_msa == MASKED).all()
    assert sample.extra_msa_mask.all()
    (without,) = example(sampling=replace(sampling, target_as_extra=False)).samples
    assert not without.extra_msa_mask.any()


def test_labels_that_do_not_fit_are_refused() -> None:
    features, labels = a_complex()
    short = crop_labels(labels, np.arange(5))
    with pytest.raises(InputError, match="'1abc' has 24 residues and labels for 5"):
        complex_example("1abc", features, short, CONFIG, np.random.default_rng(0), 1)
    slots = replace(CONFIG, sampling=replace(CONFIG.sampling, max_templates=5))
    with pytest.raises(InputError, match="'1abc' has 4 template slots"):
        complex_example("1abc", features, labels, slots, np.random.default_rng(0), 1)


def test_templates_are_shown_in_random_number_and_order_and_unused_slots_are_empty() -> None:
    features, labels = a_complex()
    slots, residues = 4, len(features.aatype)
    number = np.arange(1, slots + 1)
    features = replace(
        features,
        template_aatype=np.repeat(number[:, None], residues, 1).astype(np.int32),
        template_all_atom_positions=np.ones((slots, residues, 37, 3), np.float32) * number[:, None, None, None],
        template_all_atom_masks=np.ones((slots, residues, 37), np.float32) * number[:, None, None],
    )
    counts, firsts = set[int](), set[int]()
    for seed in range(60):
        (sample,) = complex_example("1abc", features, labels, CONFIG, np.random.default_rng(seed), 1).samples
        shown = sample.template_aatype[:, 0]
        used = np.flatnonzero(shown)
        assert len(set(shown[used].tolist())) == len(used)
        assert used.tolist() == list(range(len(used)))
        for array in (sample.template_aatype, sample.template_all_atom_positions, sample.template_all_atom_masks):
            assert (array.reshape(slots, -1) == shown[:, None]).all()
        counts.add(len(used))
        firsts.add(int(shown[0]))
    assert counts == {0, 1, 2, 3, 4}
    assert firsts == {0, 1, 2, 3, 4}


def test_unsure_residues_of_predicted_complexes_have_no_atoms_and_alignments_are_thinned() -> None:
    features, labels = a_complex()
    unsure = features.residue_index % 3 == 0
    predicted = replace(labels, confidence=np.where(unsure, 0.3, 0.7).astype(np.float32), is_distillation=True)
    whole = replace(CONFIG, crop_size=99, distillation_msa_rows=2)
    found = complex_example("1abc", features, predicted, whole, np.random.default_rng(0), 1)
    assert not found.truth.all_atom_mask[unsure].any()
    np.testing.assert_array_equal(found.truth.all_atom_mask[~unsure], labels.all_atom_mask[~unsure])
    assert not found.truth.copies_mask[0][unsure].any()  # type: ignore[attr-defined]
    assert found.is_distillation
    assert (found.name, found.resolution) == ("1abc", 2.0)
    assert len(found.samples[0].true_msa) <= 2
    experiment = complex_example(
        "1abc", features, replace(predicted, is_distillation=False), whole, np.random.default_rng(0), 1
    )
    np.testing.assert_array_equal(experiment.truth.all_atom_mask, labels.all_atom_mask)
    assert len(experiment.samples[0].true_msa) == 3


def test_the_share_of_examples_that_is_asked_for_is_not_clamped() -> None:
    clamped = [example(seed, unclamped_fraction=0.3).use_clamped_fape for seed in range(16)]
    assert 8 < sum(clamped) < 16
