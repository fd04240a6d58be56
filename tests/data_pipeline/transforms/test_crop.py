"""A crop is a stretch of the sample, anywhere with equal probability."""

import numpy as np
import pytest

from data_pipeline.transforms.crop import crop_residues, crop_start
from data_pipeline.transforms.sample import SamplingConfig, draw_sample
from tests.data_pipeline.transforms.samples import random_features


def test_crop_keeps_a_stretch_of_every_residue_axis() -> None:
    sample = draw_sample(random_features(5, 11, 2), SamplingConfig(), np.random.default_rng(0))
    crop = crop_residues(sample, 3, 4)
    assert crop.residue_index.tolist() == [3, 4, 5, 6]
    np.testing.assert_array_equal(crop.msa_feat, sample.msa_feat[:, 3:7])
    np.testing.assert_array_equal(crop.template_pseudo_beta, sample.template_pseudo_beta[:, 3:7])
    np.testing.assert_array_equal(crop.template_mask, sample.template_mask)
    assert crop_residues(sample, 0, 100).aatype.shape == (11,)


def test_crop_starts_are_equally_likely_and_always_fit() -> None:
    rng = np.random.default_rng(0)
    starts = np.bincount([crop_start(10, 7, rng) for _ in range(4000)])
    assert len(starts) == 4
    np.testing.assert_allclose(starts, 1000, atol=140)
    assert {crop_start(5, size, rng) for size in (5, 6)} == {0}


@pytest.mark.parametrize(("start", "size"), [(-1, 3), (11, 3), (0, 0)])
def test_crops_outside_the_chain_are_refused(start: int, size: int) -> None:
    sample = draw_sample(random_features(2, 11), SamplingConfig(), np.random.default_rng(0))
    with pytest.raises(ValueError, match="does not lie in a chain of 11"):
        crop_residues(sample, start, size)
