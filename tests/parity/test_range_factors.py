"""Factors of parameters are found that give a network the ranges of trained ones."""

import numpy as np
import pytest
import torch

from helixfold.apps.verify.verify import fixed_batches
from helixfold.model.presets import tiny, tiny_multimer
from tests.parity.range_factors import (
    LARGEST_LOGIT,
    MSA,
    PAIR,
    RangeFactors,
    find_range_factors,
    measured_ranges,
    with_trained_ranges,
)
from tests.support.networks import random_complex, with_every_parameter_random


@pytest.mark.parametrize("method", ["monomer", pytest.param("multimer", marks=pytest.mark.long)])
def test_streams_and_logits_get_the_ranges_that_are_asked_for(method: str) -> None:
    preset = tiny() if method == "monomer" else tiny_multimer()
    network = with_every_parameter_random(preset.model).eval()
    batches = [random_complex()] if method == "multimer" else fixed_batches(preset, torch.device("cpu"))[:1]
    factors = RangeFactors.from_arrays(find_range_factors(network, batches, times=3).to_arrays())
    before, after = (measured_ranges(each, batches) for each in (network, with_trained_ranges(network, factors)))
    assert before.streams[PAIR].max() < 20
    # The published ones are 7.4 to 223.
    assert np.sort(after.streams[PAIR])[[0, -1]] == pytest.approx([3 * 7.4, 3 * 223], rel=0.25)
    assert 3 * 250 < np.abs(after.outputs["representations/msa_first_row"]).max() < 3 * 600
    assert after.streams[MSA].max() > 10 * before.streams[MSA].max()
    assert max(before.logits.values()) < 0.3 * LARGEST_LOGIT
    assert np.median([*after.logits.values()]) == pytest.approx(LARGEST_LOGIT, rel=0.2)
    # Heads give what they gave, in size.
    assert np.abs(after.outputs["distogram/logits"]).max() < 300


def test_without_extremes_attention_and_norms_stay_as_they_are() -> None:
    network, batches = with_every_parameter_random(tiny().model).eval(), fixed_batches(tiny(), torch.device("cpu"))[:1]
    factors = find_range_factors(network, batches, extremes=False)
    scaled = dict(with_trained_ranges(network, factors).named_parameters())
    changed = {name for name, value in network.named_parameters() if not torch.equal(value, scaled[name])}
    assert not any(("norm" in name and "recycling" not in name) or "qkv" in name for name in changed)
    assert {"single.weight", "evoformer.blocks.1.pair_transition.linear_2.bias"} <= changed
