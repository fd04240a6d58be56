"""The chains of a training set as its assessment sees them: which are known, which are held out, which are scored."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from data_pipeline.datasets.index import IndexEntry
from data_pipeline.datasets.store import FeatureStore
from data_pipeline.residues import ATOM_ORDER
from helixfold.training.evaluate import read_names

HELD_OUT, TRAINING, ALIGNED = "held_out", "training", "aligned"
SAMPLE = 132  # of the training chains without an alignment, as many as were held out of the small model's
CA = ATOM_ORDER["CA"]


@dataclass(frozen=True, kw_only=True)
class KnownChain:
    """A chain with its structure."""

    name: str
    cluster: str
    sequence: str
    aatype: Int[np.ndarray, "r"]
    positions: Float[np.ndarray, "r 37 3"]  # Angstrom
    mask: Float[np.ndarray, "r 37"]  # 1 where observed


@dataclass(frozen=True)
class Chains:
    """A training set and the chains of it that were not trained on."""

    store: FeatureStore
    held_out: tuple[str, ...]

    @classmethod
    def open(cls, training_set: Path, held_out: Path) -> "Chains":
        """`InputError` where either is not what it should be."""
        store = FeatureStore.open(training_set)
        return cls(store, read_names(held_out, {entry.name for entry in store.entries}))

    @cached_property
    def entries(self) -> dict[str, IndexEntry]:
        return {entry.name: entry for entry in self.store.entries}

    @cached_property
    def trained(self) -> tuple[str, ...]:
        """All that are not held out."""
        return tuple(sorted(self.entries.keys() - set(self.held_out)))

    def known(self, name: str) -> KnownChain:
        features, labels = self.store.load(name)
        return KnownChain(
            name=name,
            cluster=self.entries[name].cluster,
            sequence=features.sequence,
            aatype=features.aatype,
            positions=labels.all_atom_positions,
            mask=labels.all_atom_mask,
        )

    @cached_property
    def training_chains(self) -> tuple[KnownChain, ...]:
        """What baselines may learn from: the structures of all chains that were trained on."""
        return tuple(self.known(name) for name in self.trained)

    def scored(self, *, everything: bool = False, seed: int = 0) -> dict[str, tuple[str, ...]]:
        """The chains that are scored, by set: held out, trained on by themselves (a sample), with alignments (all)."""
        aligned = [name for name in self.trained if self.entries[name].msa_rows > 1]
        single = [name for name in self.trained if self.entries[name].msa_rows == 1]
        if not everything and len(single) > SAMPLE:
            single = sorted(np.random.default_rng(seed).choice(single, SAMPLE, replace=False).tolist())
        return {HELD_OUT: self.held_out, TRAINING: tuple(single), ALIGNED: tuple(aligned)}


def part_of(cluster: str, parts: int) -> int:
    """Which part of several a cluster belongs to; by its name alone."""
    return zlib.crc32(cluster.encode()) % parts


def without_cluster(chains: Iterable[KnownChain], cluster: str) -> list[KnownChain]:
    """What a chain of that cluster may be predicted from: neither itself nor a relative that is known to be one."""
    return [chain for chain in chains if chain.cluster != cluster]
