"""A record gives back the example it was made of, and damage to any of its bytes is an InputError."""

from dataclasses import replace

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.training_sets.chain_record import ChainRecord, encode_record
from tests.data_pipeline.training_sets.stored import assert_same, example

KEY = "0123456789abcdef" * 2


@pytest.mark.parametrize(("rows", "templates"), [(1, 0), (7, 2), (40, 4)])
def test_an_example_comes_back_bit_for_bit(rows: int, templates: int) -> None:
    given = example("1abc_A", rows=rows, templates=templates)
    content = encode_record(KEY, *given)
    assert encode_record(KEY, *given) == content
    record = ChainRecord(content, "here")
    assert_same((record.features(), record.labels()), given)
    assert (record.head.key, record.head.name) == (KEY, "1abc_A")


def test_odd_numbers_and_names_come_back_too() -> None:
    features, labels = example("名前 *'\"\\", templates=1)
    labels = replace(
        labels,
        all_atom_positions=labels.all_atom_positions * np.float32(np.pi),
        confidence=np.linspace(0, 1, 30, dtype=np.float32),
        resolution=1 / 3,
        is_distillation=True,
    )
    record = ChainRecord(encode_record(KEY, features, labels), "here")
    assert_same((record.features(), record.labels()), (features, labels))


def test_arrays_of_another_length_than_the_sequence_are_not_stored() -> None:
    with pytest.raises(ValueError, match=r"all_atom_mask of '1abc_A' is \(29, 37\), not \(30, 37\)"):
        encode_record(KEY, example("1abc_A")[0], example("1abc_A", residues=29)[1])


def test_damage_to_any_byte_is_found() -> None:
    content = encode_record(KEY, *example("1abc_A", residues=8, rows=3, templates=1))
    rng = np.random.default_rng(0)
    for position in {*range(40), *rng.integers(0, len(content), 500).tolist()}:
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(rng.integers(8))
        with pytest.raises(InputError, match="here: not a complete record"):
            ChainRecord(bytes(damaged), "here").check()


def test_a_record_that_is_cut_or_longer_is_refused() -> None:
    content = encode_record(KEY, *example("1abc_A", residues=8, rows=3, templates=1))
    for wrong in (*(content[:size] for size in range(0, len(content), 7)), content + b"x", b""):
        with pytest.raises(InputError, match="not a complete record"):
            ChainRecord(wrong, "here").check()


def test_labels_are_read_without_the_msa() -> None:
    given = example("1abc_A")
    content = encode_record(KEY, *given)
    without_msa = content[:-20] + bytes(20)  # the MSA lies at the end
    record = ChainRecord(without_msa, "here")
    assert_same((given[0], record.labels()), given)
    with pytest.raises(InputError, match="msa is damaged"):
        record.features()
