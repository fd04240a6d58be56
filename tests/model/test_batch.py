"""A batch is a sample as tensors: the same fields, the same numbers, one dimension more."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

from data_pipeline.features.sample import Sample
from helixfold.model.batch import Batch, sampled_fields


def random_sample(*, residues: int = 6, rows: int = 3, extra: int = 4, templates: int = 2) -> Sample:
    random = np.random.default_rng(0)
    sizes = {"r": residues, "s": rows, "e": extra, "t": templates}

    def integers(shape: str, highest: int) -> np.ndarray:
        return random.integers(0, highest, [sizes[each] for each in shape]).astype(np.int32)

    def floats(shape: str, *inner: int) -> np.ndarray:
        return random.random([*(sizes[each] for each in shape), *inner]).astype(np.float32)

    return Sample(
        aatype=integers("r", 21),
        residue_index=np.arange(residues, dtype=np.int32),
        seq_mask=floats("r"),
        target_feat=floats("r", 22),
        msa_feat=floats("sr", 49),
        msa_mask=floats("sr"),
        true_msa=integers("sr", 23),
        bert_mask=floats("sr"),
        extra_msa=integers("er", 23),
        extra_has_deletion=floats("er"),
        extra_deletion_value=floats("er"),
        extra_msa_mask=floats("er"),
        template_aatype=integers("tr", 22),
        template_all_atom_positions=floats("tr", 37, 3),
        template_all_atom_masks=floats("tr", 37),
        template_mask=floats("t"),
        template_pseudo_beta=floats("tr", 3),
        template_pseudo_beta_mask=floats("tr"),
    )


@pytest.mark.parametrize("templates", [0, 2])
def test_every_field_keeps_its_numbers(templates: int) -> None:
    sample = random_sample(templates=templates)
    batch = Batch.from_samples([sample])
    for name in sampled_fields(Batch):
        array, tensor = getattr(sample, name), getattr(batch, name)
        assert tensor.shape == (1, *array.shape), name
        assert tensor.dtype == (torch.int64 if array.dtype.kind == "i" else torch.float32), name
        np.testing.assert_array_equal(tensor[0], array)


def test_labels_of_a_sample_are_left_out() -> None:
    names = {field.name for field in fields(Sample)} - set(sampled_fields(Batch))
    assert names == {"true_msa", "bert_mask"}


def test_a_batch_has_memory_of_its_own_whatever_the_arrays_are() -> None:
    sample = random_sample()
    sample.msa_mask.flags.writeable = False
    batch = Batch.from_samples([replace(sample, seq_mask=sample.seq_mask[::-1])])
    np.testing.assert_array_equal(batch.seq_mask[0], sample.seq_mask[::-1])
    batch.msa_mask.zero_()
    assert sample.msa_mask.any()


def test_it_goes_to_the_device_asked_for() -> None:
    assert Batch.from_samples([random_sample()], device="meta").msa_feat.device.type == "meta"
    assert Batch.from_samples([random_sample()], device=torch.device("cpu")).msa_feat.device.type == "cpu"


def test_fields_whose_sizes_disagree_are_refused() -> None:
    batch = Batch.from_samples([random_sample()])
    with pytest.raises(TypeCheckError, match="seq_mask"):
        replace(batch, seq_mask=torch.ones(1, 7))
