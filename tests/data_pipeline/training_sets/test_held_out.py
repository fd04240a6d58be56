"""What a model is judged by is not what it was trained on."""

from dataclasses import dataclass, replace

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.sampling.complex_training import ComplexTruth
from data_pipeline.sampling.sample import SamplingConfig
from data_pipeline.sampling.training import ExampleConfig
from data_pipeline.training_sets.assembly_record import (
    AssemblyEntry,
    AssemblyRecord,
    LabelledComplex,
    PlacedChain,
    labelled_complex,
)
from data_pipeline.training_sets.examples import ComplexDataset, TrainingDataset
from tests.data_pipeline.training_sets.memory_store import MemoryStore, small_store


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


@dataclass(frozen=True)
class AssembledStore(MemoryStore):
    """A training set in memory with assemblies, whose chains stand where their own files have them."""

    assemblies: tuple[AssemblyEntry, ...] = ()

    def load_complex(self, name: str) -> LabelledComplex:
        entry = next(entry for entry in self.assemblies if entry.name == name)
        still = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
        chains = tuple(PlacedChain(name=chain, motion=still) for chain in entry.chains)
        return labelled_complex(
            AssemblyRecord(name=name, chains=chains, pairing={}), {chain: self.load(chain) for chain in entry.chains}
        )


def assembled(**chains: str) -> AssembledStore:
    """Six chains, of which two neighbours are in one cluster, and assemblies of the chains with these numbers."""
    entries = tuple(
        replace(entry, cluster=f"cluster{place // 2}") for place, entry in enumerate(small_store(6).entries)
    )
    assemblies = (
        AssemblyEntry(name=name, key="0", chains=tuple(f"chain{each}" for each in places))
        for name, places in chains.items()
    )
    return AssembledStore(entries, assemblies=tuple(assemblies))


def test_examples_of_complexes_are_of_the_first_assembly_of_a_chain() -> None:
    config = ExampleConfig(crop_size=16, sampling=SamplingConfig(max_msa_clusters=4, max_extra_msa=6, max_templates=1))
    dataset = ComplexDataset(store=assembled(one="02", two="24", three="55"), config=config, seed=2)
    assert [entry.name for entry in dataset.entries] == ["chain0", "chain2", "chain4", "chain5"]
    drawn = [dataset.draw(step) for step in range(24)]
    assert {each.examples[0].name for each in drawn} == {"one", "two", "three"}
    assert all(isinstance(each.examples[0].truth, ComplexTruth) for each in drawn)
    # Chain 2 is in two assemblies, of which the first counts.
    fewer = ComplexDataset(store=assembled(one="02", two="22"), config=config)
    assert {fewer.draw(step).examples[0].name for step in range(8)} == {"one"}


def test_assemblies_with_a_chain_like_one_that_is_held_out_are_never_drawn() -> None:
    store = assembled(one="01", two="32", three="4", four="24")
    dataset = ComplexDataset(store=store, held_out=["two"])
    # Of "four", one chain is in the cluster of "two".
    assert [entry.name for entry in dataset.entries] == ["chain0", "chain1", "chain4"]
    with pytest.raises(InputError, match="has 4 assemblies, of which 3 are held out and none is left; build it with"):
        ComplexDataset(store=store, held_out=["one", "two", "three"])
