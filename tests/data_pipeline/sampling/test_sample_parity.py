"""A sample without randomness is AlphaFold's, which pads it with zeros to fixed sizes."""

from dataclasses import fields

import numpy as np
import pytest

from tests.data_pipeline.sampling.samples import alphafold_sample


@pytest.mark.parity
def test_a_sample_equals_alphafolds_final_features_before_padding() -> None:
    sample, expected = alphafold_sample()
    for field in fields(sample):
        ours, theirs = getattr(sample, field.name), expected[field.name]
        assert ours.dtype == theirs.dtype, field.name
        real = tuple(map(slice, ours.shape))
        np.testing.assert_allclose(ours, theirs[real], atol=1e-6, err_msg=field.name)
        padding = theirs.copy()
        padding[real] = 0
        assert not padding.any(), field.name
