"""A training set in memory, for tests of what is drawn from one."""

from dataclasses import dataclass, replace
from datetime import date

import numpy as np

from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from data_pipeline.training_sets.index import IndexEntry
from tests.data_pipeline.sampling.samples import random_features, random_labels


def entry(
    name: str, *, cluster: str | None = None, length: int = 300, msa_rows: int = 1, distilled: bool = False
) -> IndexEntry:
    return IndexEntry(
        name=name,
        cluster=name if cluster is None else cluster,
        length=length,
        msa_rows=msa_rows,
        release_date=None if distilled else date(2015, 1, 1),
        resolution=None if distilled else 2.0,
        is_distillation=distilled,
        key=name,
    )


@dataclass(frozen=True)
class MemoryStore:
    """Random chains under the names of the index; `damaged` ones cannot be loaded, `faulty` ones show a bug."""

    entries: tuple[IndexEntry, ...]
    damaged: frozenset[str] = frozenset()
    faulty: frozenset[str] = frozenset()

    def load(self, name: str) -> tuple[Features, ChainLabels]:
        if name in self.damaged:
            raise InputError(f"the record of '{name}' is damaged")
        if name in self.faulty:
            raise ZeroDivisionError("a bug")
        entry = next(entry for entry in self.entries if entry.name == name)
        features = replace(random_features(30, entry.length, 3), domain_name=name)
        return features, random_labels(entry.length, is_distillation=entry.is_distillation)


def small_store(chains: int = 12, **faults: frozenset[str]) -> MemoryStore:
    lengths = np.random.default_rng(0).integers(20, 60, chains)
    return MemoryStore(tuple(entry(f"chain{i}", length=int(length)) for i, length in enumerate(lengths)), **faults)
