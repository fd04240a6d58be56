"""The training set as the trainer sees it: the examples of any step and rank, whatever was drawn before."""

from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol

from data_pipeline.datasets.index import IndexEntry
from data_pipeline.datasets.sampling import ChainSampler, ChainSelection, Use, num_passes, stream
from data_pipeline.errors import InputError, printable
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
    """What one rank trains on in one step."""

    step: int
    examples: tuple[TrainingExample, ...]
    refused: tuple[str, ...]  # chains that were drawn and cannot be used, each with its reason


@dataclass(frozen=True, kw_only=True)
class TrainingDataset:
    """Maps a step to the examples of this rank; every rank and every place in the batch has random streams of its own.

    Different seeds are different runs. A chain whose record cannot be used is replaced by the next one drawn from the
    same stream, so also then step, rank and seed alone decide.
    """

    store: ChainStore
    config: ExampleConfig = field(default_factory=ExampleConfig)
    selection: ChainSelection = field(default_factory=ChainSelection)
    seed: int = 0
    rank: int = 0
    batch_size: int = 1  # examples of one step on this rank
    _sampler: ChainSampler = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.rank < 0:
            given = f"{self.batch_size} and {self.rank}"
            raise ValueError(f"batch_size must be at least 1 and rank not negative, got {given}")
        if self.batch_size > 1 and not self.config.fixed_shapes:
            raise ValueError(f"{self.batch_size} examples stack only if config.fixed_shapes is set")
        object.__setattr__(self, "_sampler", ChainSampler(self.store.entries, self.selection))

    def on_rank(self, rank: int) -> "TrainingDataset":
        return replace(self, rank=rank)

    def num_passes(self, step: int) -> int:
        """How many recycling passes this step's examples have, on all ranks alike."""
        return num_passes(self.seed, step, self.config.max_passes)

    def __getitem__(self, step: int) -> StepExamples:
        refused: list[str] = []
        examples = tuple(self._draw(step, place, refused) for place in range(self.batch_size))
        return StepExamples(step=step, examples=examples, refused=tuple(refused))

    def _draw(self, step: int, place: int, refused: list[str]) -> TrainingExample:
        choice = stream(self.seed, Use.CHOICE, step, self.rank, place)
        for attempt in range(_MAX_DRAWS):
            name = self.store.entries[self._sampler.draw(choice)].name
            transform = stream(self.seed, Use.TRANSFORM, step, self.rank, place, attempt)
            with _Naming(f"chain '{printable(name)}', step {step}, rank {self.rank}, place {place} in the batch"):
                try:
                    return training_example(*self.store.load(name), self.config, transform, self.num_passes(step))
                except InputError as error:
                    refused.append(f"{printable(name)}: {error}")
        raise InputError(
            f"{_MAX_DRAWS} chains drawn one after the other for step {step}, rank {self.rank} cannot be used "
            f"(the last is {refused[-1]}); check the feature store"
        )


@dataclass(frozen=True)
class _Naming:
    """Adds to any error on its way out where it happened; a worker's traceback alone would not tell."""

    place: str

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"while an example was made of {self.place}")
