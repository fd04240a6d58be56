"""Exclusion of validation chains, and of all chains similar to them, from training."""

from collections.abc import Collection
from dataclasses import dataclass, field

from data_pipeline.datasets.examples import ChainStore
from data_pipeline.datasets.index import IndexEntry
from data_pipeline.errors import InputError
from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.schema import Features


@dataclass(frozen=True, kw_only=True)
class StoreWithoutHeldOut:
    """Store without the held-out chains `names` and without all chains that share a cluster with them.

    Excluding the clusters prevents leakage from similar chains. Raise `InputError` if no chain is left.
    """

    store: ChainStore
    names: Collection[str]
    entries: tuple[IndexEntry, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        clusters = {entry.cluster for entry in self.store.entries if entry.name in self.names}
        left = tuple(entry for entry in self.store.entries if entry.cluster not in clusters)
        if not left:
            raise InputError(
                f"the {len(self.names)} held-out chains and their clusters are all of the training set; hold out fewer"
            )
        object.__setattr__(self, "entries", left)

    def load(self, name: str) -> tuple[Features, ChainLabels]:
        """Return the features and labels of the chain `name`; held-out chains can still be loaded."""
        return self.store.load(name)
