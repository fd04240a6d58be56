"""A model's input has what the model reads of a target, and no empty template slot twice."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from data_pipeline.sampling.complex_sample import complex_sample, draw
from helixfold.execution.whole import Whole
from helixfold.folding.model_input import batch_of
from helixfold.model.batch import MultimerBatch
from helixfold.model.presets import tiny_multimer
from tests.support.complex_targets import feature_set
from tests.support.networks import with_every_parameter_random

PRESET = tiny_multimer()


@pytest.mark.parametrize(("filled", "embedded", "last"), [(0, 1, 4), (1, 2, 3), (3, 4, 1), (4, 4, 1)])
def test_empty_template_slots_are_embedded_once_and_count_as_all(filled: int, embedded: int, last: int) -> None:
    rng, multimer = np.random.default_rng(filled), feature_set().multimer
    masks = np.zeros_like(multimer.template_all_atom_masks)
    masks[:filled, :, :5] = 1
    types = np.where(masks[..., 0] > 0, rng.integers(20, size=masks.shape[:2]), 0)
    multimer = replace(
        multimer,
        template_aatype=types.astype(multimer.template_aatype.dtype),
        template_all_atom_positions=rng.normal(0, 8, (*masks.shape, 3)).astype(np.float32) * masks[..., None],
        template_all_atom_masks=masks,
    )
    sample = complex_sample(multimer, PRESET.sampling, draw(multimer, PRESET.sampling, rng))
    everything, merged = MultimerBatch.from_samples([sample]), batch_of([sample], PRESET, merge_slots=True)
    assert isinstance(merged, MultimerBatch)
    assert everything.template_mask.shape == (1, 4)
    assert merged.template_aatype.shape[1] == embedded
    slots = torch.ones(1, embedded) if merged.template_slots is None else merged.template_slots
    assert slots[0].tolist() == [1.0] * (embedded - 1) + [float(last)]

    model = with_every_parameter_random(PRESET.model).eval()
    assert model.template_embedder is not None
    embeddings: list[int] = []
    model.template_embedder.pair.register_forward_hook(lambda *_: embeddings.append(1))
    with torch.no_grad():
        one, other = (model(Whole(), [batch]).structure.positions for batch in (everything, merged))
    assert len(embeddings) == 4 + embedded
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


def test_slots_are_kept_that_another_sample_of_the_batch_fills() -> None:
    rng, multimer = np.random.default_rng(0), feature_set().multimer
    masks = np.zeros_like(multimer.template_all_atom_masks)
    full = masks.copy()
    full[:2] = 1
    samples = [
        complex_sample(each, PRESET.sampling, draw(each, PRESET.sampling, rng))
        for each in (replace(multimer, template_all_atom_masks=these) for these in (masks, full))
    ]
    batch = batch_of(samples, PRESET, merge_slots=True)
    assert isinstance(batch, MultimerBatch)
    assert batch.template_slots is not None
    assert batch.template_slots.tolist() == [[1.0, 1.0, 2.0]] * 2
