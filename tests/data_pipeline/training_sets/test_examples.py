"""The examples of a step are the same whenever, wherever and after whatever they are asked for."""

import pickle
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.sampling.sample import SamplingConfig
from data_pipeline.sampling.training import ExampleConfig
from data_pipeline.training_sets.examples import StepExamples, TrainingDataset
from tests.data_pipeline.training_sets.memory_store import MemoryStore, small_store

CONFIG = ExampleConfig(crop_size=16, sampling=SamplingConfig(max_msa_clusters=4, max_extra_msa=6, max_templates=2))


def dataset(**settings: Any) -> TrainingDataset:
    return TrainingDataset(**({"store": small_store(), "config": CONFIG, "seed": 3} | settings))


def assert_equal(one: StepExamples, two: StepExamples) -> None:
    assert (one.step, one.refused, len(one.examples)) == (two.step, two.refused, len(two.examples))
    for first, second in zip(one.examples, two.examples, strict=True):
        assert (first.name, first.use_clamped_fape) == (second.name, second.use_clamped_fape)
        pairs = [*zip(first.samples, second.samples, strict=True), (first.truth, second.truth)]
        for left, right in pairs:
            for field in fields(left):
                np.testing.assert_array_equal(getattr(left, field.name), getattr(right, field.name))


def test_a_step_does_not_depend_on_the_steps_before_or_on_the_process() -> None:
    in_order = [dataset().draw(step) for step in range(6)]
    one = dataset()
    for step in (5, 0, 3, 3):
        assert_equal(one.draw(step), in_order[step])
    assert_equal(pickle.loads(pickle.dumps(one)).draw(4), in_order[4])


def test_parts_steps_and_seeds_draw_for_themselves() -> None:
    def signature(found: TrainingDataset, step: int, part: int = 0) -> tuple[bytes, ...]:
        return tuple(example.samples[0].msa_feat.tobytes() for example in found.draw(step, part).examples)

    two = dataset(batch_size=2)
    drawn = [*signature(two, 0), *signature(two, 1), *signature(two, 0, 1), *signature(dataset(seed=4), 0)]
    assert len(set(drawn)) == len(drawn)
    # A place of the step's batch is what it is, however the batch is cut into parts.
    assert [*signature(dataset(), 0, 0), *signature(dataset(), 0, 1)] == drawn[:2]
    assert [*signature(dataset(), 0, 2), *signature(dataset(), 0, 3)] == drawn[4:6]


def test_chains_and_transforms_have_streams_of_their_own_in_every_place() -> None:
    def names(found: TrainingDataset, place: int) -> list[str]:
        return [found.draw(step, place // 2).examples[place % 2].name for step in range(12)]

    two = dataset(batch_size=2)
    drawn = [tuple(names(two, place)) for place in range(4)]
    assert len(set(drawn)) == 4
    # With one chain to draw, only the transform can tell places apart.
    single = dataset(store=small_store(1), batch_size=2)
    shown = [example.samples[0].msa_feat.tobytes() for part in range(2) for example in single.draw(0, part).examples]
    assert len(set(shown)) == 4


def test_every_example_of_a_step_has_the_same_number_of_passes_in_every_part() -> None:
    two = dataset(batch_size=2)
    passes = [two.num_passes(step) for step in range(12)]
    for part in range(3):
        for step in range(12):
            assert {len(example.samples) for example in two.draw(step, part).examples} == {passes[step]}
    assert len(set(passes)) > 1


def test_chains_that_cannot_be_loaded_are_replaced_and_named() -> None:
    healthy, broken = dataset(), dataset(store=small_store(damaged=frozenset({"chain3", "chain7"})))
    affected = 0
    for step in range(40):
        chain, found = healthy.draw(step).examples[0].name, broken.draw(step)
        if chain in ("chain3", "chain7"):
            affected += 1
            assert found.refused[0] == f"{chain}: the record of '{chain}' is damaged"
            assert found.examples[0].name not in ("chain3", "chain7")
            assert_equal(found, broken.draw(step))
        else:
            assert_equal(found, healthy.draw(step))
    assert affected


def test_a_store_without_a_usable_chain_ends_the_run_with_the_reason() -> None:
    everything = small_store()
    broken = replace(everything, damaged=frozenset(entry.name for entry in everything.entries))
    with pytest.raises(InputError, match=r"10 chains drawn one after the other for step 2, place 0 .* is damaged"):
        dataset(store=broken).draw(2)


def test_bugs_are_not_taken_for_bad_records_and_say_where_they_struck() -> None:
    store = small_store()
    faulty = MemoryStore(store.entries, faulty=frozenset(entry.name for entry in store.entries))
    with pytest.raises(ZeroDivisionError) as caught:
        dataset(store=faulty).draw(5, 2)
    assert caught.value.__notes__[0].startswith("while an example was made of chain 'chain")
    assert caught.value.__notes__[0].endswith("', step 5, place 2 in the batch")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2, "config": replace(CONFIG, fixed_shapes=False)}, "only if config.fixed_shapes is set"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataset(**settings)
