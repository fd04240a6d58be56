"""Padding is AlphaFold's: zeros after the real ones, on every axis asked for."""

from dataclasses import fields

import numpy as np
import pytest

from data_pipeline.transforms.pad import pad_sample
from data_pipeline.transforms.sample import SamplingConfig, draw_sample
from tests.data_pipeline.transforms.samples import alphafold_sample, random_features


@pytest.mark.parity
def test_padded_sample_equals_alphafolds_final_features() -> None:
    sample, expected = alphafold_sample()
    padded = pad_sample(sample, residues=80, msa_rows=12, extra_rows=24, templates=4)
    for field in fields(padded):
        ours = getattr(padded, field.name)
        assert ours.dtype == expected[field.name].dtype, field.name
        np.testing.assert_allclose(ours, expected[field.name], atol=1e-6, err_msg=field.name)


def test_each_axis_pads_alone_and_masks_what_it_adds() -> None:
    sample = draw_sample(random_features(5, 7, 1), SamplingConfig(max_msa_clusters=3), np.random.default_rng(0))
    assert pad_sample(sample, residues=9).msa_mask.shape == (3, 9)
    rows = pad_sample(sample, msa_rows=6, extra_rows=4, templates=2)
    assert rows.msa_feat.shape == (6, 7, 49)
    assert rows.msa_mask.sum() == sample.msa_mask.sum()
    assert rows.extra_msa_mask.shape == (4, 7)
    assert rows.template_mask.tolist() == [1, 0]
    np.testing.assert_array_equal(rows.seq_mask, sample.seq_mask)


def test_padding_to_less_is_refused() -> None:
    sample = draw_sample(random_features(5, 7), SamplingConfig(), np.random.default_rng(0))
    with pytest.raises(ValueError, match="aatype has size 7 along r, more than 6"):
        pad_sample(sample, residues=6)
