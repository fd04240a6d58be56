"""The training set as the trainer sees it: the examples of any step, whatever was drawn before and wherever."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from data_pipeline.datasets.chain_sampling import ChainSampler, ChainSelection, StreamUse, num_passes, random_stream
from data_pipeline.datasets.index import IndexEntry
from data_pipeline.errors import InputError, check_at_least, printable
from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.schema import Features
from data_pipeline.transforms.training import ExampleConfig, TrainingExample, training_example

_MAX_DRAWS = 10  # of one example, until the store counts as broken


class ChainStore(Protocol):
    """Where the chains of a training set are kept; `datasets.store.FeatureStore` is one."""

    @property
    def entries(self) -> tuple[IndexEntry, ...]: ...

    def load(self, name: str) -> tuple[Features, ChainLabels]:
        """Features and labels of one chain; `InputError` if its record cannot be used."""


@dataclass(frozen=True, kw_only=True)
class StepExamples:
    """One part of what all ranks together train on in one step: what goes through the network at once."""

    step: int
    part: int
    examples: tuple[TrainingExample, ...]
    refused: tuple[str, ...]  # chains that were drawn and cannot be used, each with its reason


@dataclass(frozen=True, kw_only=True)
class TrainingDataset:
    """Maps a step and a part of its batch to examples; every place in the batch has random streams of its own.

    Parts are `batch_size` places of the step's batch one after the other, and which rank asks for a part changes
    nothing: so a run goes on exactly on another number of ranks. Different seeds are different runs. A chain whose
    record cannot be used is replaced by the next one drawn from the same stream, so also then step, place and seed
    alone decide.
    """

    store: ChainStore
    config: ExampleConfig = field(default_factory=ExampleConfig)
    selection: ChainSelection = field(default_factory=ChainSelection)
    seed: int = 0
    batch_size: int = 1  # examples of one part
    _sampler: ChainSampler = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_at_least(self, batch_size=1)
        if self.batch_size > 1 and not self.config.fixed_shapes:
            raise ValueError(f"{self.batch_size} examples stack only if config.fixed_shapes is set")
        object.__setattr__(self, "_sampler", ChainSampler(self.store.entries, self.selection))

    def num_passes(self, step: int) -> int:
        """How many recycling passes this step's examples have, in all parts alike."""
        return num_passes(self.seed, step, self.config.max_passes)

    def draw(self, step: int, part: int = 0) -> StepExamples:
        """The examples of one part of a step's batch."""
        refused: list[str] = []
        places = range(part * self.batch_size, (part + 1) * self.batch_size)
        examples = tuple(self._draw(step, place, refused) for place in places)
        return StepExamples(step=step, part=part, examples=examples, refused=tuple(refused))

    def _draw(self, step: int, place: int, refused: list[str]) -> TrainingExample:
        choice = random_stream(self.seed, StreamUse.CHOICE, step, place)
        for attempt in range(_MAX_DRAWS):
            name = self.store.entries[self._sampler.draw(choice)].name
            transform = random_stream(self.seed, StreamUse.TRANSFORM, step, place, attempt)
            with _naming(f"chain '{printable(name)}', step {step}, place {place} in the batch"):
                try:
                    return training_example(*self.store.load(name), self.config, transform, self.num_passes(step))
                except InputError as error:
                    refused.append(f"{printable(name)}: {error}")
        raise InputError(
            f"{_MAX_DRAWS} chains drawn one after the other for step {step}, place {place} cannot be used "
            f"(the last is {refused[-1]}); check the feature store"
        )


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Add to any error on its way out where it happened; a worker's traceback alone would not tell."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"while an example was made of {place}")
        raise
