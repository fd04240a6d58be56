"""Chains that training must not see: those that a model is judged by, and all that resemble them."""

from collections.abc import Collection
from dataclasses import dataclass, field

from data_pipeline.datasets.examples import ChainStore
from data_pipeline.datasets.index import IndexEntry
from data_pipeline.errors import InputError
from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.schema import Features


@dataclass(frozen=True, kw_only=True)
class StoreWithoutHeldOut:
    """A store without some chains and without their clusters: what is like them would give them away."""

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
        """Features and labels of one chain."""
        return self.store.load(name)
