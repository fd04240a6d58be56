"""What a model is judged by is not what it was trained on."""

from dataclasses import replace

import pytest

from data_pipeline.datasets.examples import TrainingDataset
from data_pipeline.errors import InputError
from tests.data_pipeline.datasets.memory_store import small_store


def test_held_out_chains_and_their_clusters_are_never_drawn() -> None:
    store = small_store()
    pairs = tuple(replace(entry, cluster=f"cluster{place // 2}") for place, entry in enumerate(store.entries))
    store = replace(store, entries=pairs)
    first = store.entries[0]
    twins = tuple(entry for entry in store.entries if entry.cluster == first.cluster)
    assert len(twins) == 2
    dataset = TrainingDataset(store=store, seed=1, held_out=frozenset({first.name}))
    assert {entry.name for entry in dataset.entries} == {entry.name for entry in store.entries} - {
        entry.name for entry in twins
    }
    drawn = {dataset.draw(step).examples[0].name for step in range(30)}
    assert drawn
    assert drawn.isdisjoint({entry.name for entry in twins})


def test_holding_out_everything_is_refused() -> None:
    store = small_store()
    one_cluster = replace(store, entries=tuple(replace(entry, cluster="same") for entry in store.entries))
    with pytest.raises(InputError, match="hold out fewer"):
        TrainingDataset(store=one_cluster, held_out=["chain0"])
