"""Training dataset with random access to the examples of any step, independently of ranks and workers."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import numpy as np

from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.schema import Features
from data_pipeline.io.config import Checked, at_least
from data_pipeline.io.errors import InputError, printable
from data_pipeline.sampling.complex_training import complex_example
from data_pipeline.sampling.training import ExampleConfig, TrainingExample, training_example
from data_pipeline.training_sets.assembly_record import AssemblyEntry, LabelledComplex
from data_pipeline.training_sets.chain_sampling import (
    ChainSampler,
    ChainSelection,
    StreamUse,
    num_passes,
    random_stream,
)
from data_pipeline.training_sets.index import IndexEntry

_MAX_DRAWS = 10  # max unusable chains in a row for one example, before the store counts as broken


class ChainStore(Protocol):
    """Protocol for stores of training chains, such as `training_sets.store.FeatureStore`."""

    @property
    def entries(self) -> tuple[IndexEntry, ...]:
        """Index entries of all chains in the store."""

    def load(self, name: str) -> tuple[Features, ChainLabels]:
        """Return the features and labels of the chain `name`; raise `InputError` if its record cannot be used."""


class ComplexStore(ChainStore, Protocol):
    """Protocol for stores of training chains and their assemblies."""

    @property
    def assemblies(self) -> tuple[AssemblyEntry, ...]:
        """Index entries of all assemblies in the store."""

    def load_complex(self, name: str) -> LabelledComplex:
        """Return the features and labels of the assembly `name`; raise `InputError` if a record cannot be used."""


@dataclass(frozen=True, kw_only=True)
class StepExamples:
    """Examples of one micro-batch of a step, which the network processes together.

    `micro_batch` is its index within the step, from 0. `refused` has sampled chains that could not be used, and were
    replaced, as "name: reason".
    """

    step: int
    micro_batch: int  # index within the step
    examples: tuple[TrainingExample, ...]
    refused: tuple[str, ...]  # sampled chains that cannot be used, as "name: reason"


@dataclass(frozen=True, kw_only=True)
class TrainingDataset(Checked):
    """Dataset that maps a step and the index of a micro-batch to examples, which depend only on the seed.

    `batch_size` is the number of examples of one micro-batch. Micro-batch m has the batch indices from m * `batch_size`
    up to, but not including, (m + 1) * `batch_size`, and each index has its own random streams. The examples do not
    depend on the rank, so a run can be resumed exactly on another number of ranks. A chain whose record cannot be used
    is replaced by the next one from the same stream.

    Chains in `held_out`, and all chains in their clusters, are never sampled, because training on similar chains would
    invalidate an evaluation. `entries` are the index entries of the other chains, before `selection`. Raise
    `InputError` if no chain remains, and `ValueError` if `batch_size` is above 1 without `config.fixed_shapes`.
    """

    store: ChainStore
    config: ExampleConfig = field(default_factory=ExampleConfig)
    selection: ChainSelection = field(default_factory=ChainSelection)
    seed: int = 0
    batch_size: Annotated[int, at_least(1)] = 1  # examples of one micro-batch
    held_out: Collection[str] = ()
    entries: tuple[IndexEntry, ...] = field(init=False, repr=False, compare=False)  # of the chains to sample
    _sampler: ChainSampler = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size > 1 and not self.config.fixed_shapes:
            raise ValueError(f"{self.batch_size} examples stack only if config.fixed_shapes is set")
        entries = self._allowed()
        object.__setattr__(self, "entries", entries)
        object.__setattr__(self, "_sampler", ChainSampler(entries, self.selection))

    def _allowed(self) -> tuple[IndexEntry, ...]:
        """Return the index entries of the chains to sample."""
        clusters = {entry.cluster for entry in self.store.entries if entry.name in self.held_out}
        entries = tuple(entry for entry in self.store.entries if entry.cluster not in clusters)
        if clusters and not entries:
            raise InputError(
                f"the {len(self.held_out)} held-out chains and their clusters are all of the training set; "
                "hold out fewer"
            )
        return entries

    def num_passes(self, step: int) -> int:
        """Return the number of recycling iterations of this step, at random from 1 to `config.max_passes`.

        It is the same for all examples and ranks.
        """
        return num_passes(self.seed, step, self.config.max_passes)

    def draw(self, step: int, micro_batch: int = 0) -> StepExamples:
        """Sample the examples of one micro-batch of a step.

        The same arguments give the same examples. Raise `InputError` after 10 unusable chains in a row.
        """
        refused: list[str] = []
        places = range(micro_batch * self.batch_size, (micro_batch + 1) * self.batch_size)
        examples = tuple(self._draw(step, place, refused) for place in places)
        return StepExamples(step=step, micro_batch=micro_batch, examples=examples, refused=tuple(refused))

    def _draw(self, step: int, place: int, refused: list[str]) -> TrainingExample:
        """Return the example of a random chain; add a chain that cannot be used to `refused`, and draw again."""
        choice = random_stream(self.seed, StreamUse.CHOICE, step, place)
        for attempt in range(_MAX_DRAWS):
            name = self.entries[self._sampler.draw(choice)].name
            transform = random_stream(self.seed, StreamUse.TRANSFORM, step, place, attempt)
            try:
                return self._example(name, transform, self.num_passes(step))
            except InputError as error:
                refused.append(f"{printable(name)}: {error}")
            except BaseException as error:
                # The traceback of a worker does not contain the chain.
                where = f"chain '{printable(name)}', step {step}, place {place} in the batch"
                error.add_note(f"while an example was made of {where}")
                raise
        raise InputError(
            f"{_MAX_DRAWS} chains drawn one after the other for step {step}, place {place} cannot be used "
            f"(the last is {refused[-1]}); check the feature store"
        )

    def _example(self, chain: str, rng: np.random.Generator, num_passes: int) -> TrainingExample:
        return training_example(*self.store.load(chain), self.config, rng, num_passes)


@dataclass(frozen=True, kw_only=True)
class ComplexDataset(TrainingDataset):
    """Dataset of complexes: an example is a crop of the first assembly with a chain sampled as for single chains.

    `held_out` has names of assemblies; assemblies with a chain in a cluster of their chains are never sampled.
    AlphaFold-Multimer (Evans et al. 2022), Suppl. Sec. 7.6.
    """

    store: ComplexStore
    _assembly_of: dict[str, str] = field(init=False, repr=False, compare=False)

    def _allowed(self) -> tuple[IndexEntry, ...]:
        """Return the chains of assemblies without a chain in a cluster of a held-out assembly.

        Also set `_assembly_of`, the name of the first such assembly of each chain.
        """
        cluster_of = {entry.name: entry.cluster for entry in self.store.entries}
        clusters = {
            cluster_of[chain] for each in self.store.assemblies if each.name in self.held_out for chain in each.chains
        }
        assembly_of: dict[str, str] = {}
        for assembly in self.store.assemblies:
            if not any(cluster_of[chain] in clusters for chain in assembly.chains):
                for chain in assembly.chains:
                    assembly_of.setdefault(chain, assembly.name)
        if not assembly_of:
            raise InputError(
                f"the training set has {len(self.store.assemblies)} assemblies, of which {len(self.held_out)} are held "
                "out and none is left; build it with --assemblies, or hold out fewer"
            )
        object.__setattr__(self, "_assembly_of", assembly_of)
        return tuple(entry for entry in self.store.entries if entry.name in assembly_of)

    def _example(self, chain: str, rng: np.random.Generator, num_passes: int) -> TrainingExample:
        assembly = self.store.load_complex(self._assembly_of[chain])
        return complex_example(assembly.name, assembly.features, assembly.labels, self.config, rng, num_passes)
