"""Which chain a training step sees: a function of (seed, step, place in the batch) alone, whatever was drawn before.

So a run resumes at any step without replaying the ones before, and neither the number of workers nor their speed
changes what is drawn.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import IntEnum

import numpy as np
from jaxtyping import Float64, Int

from data_pipeline.config import Config, ConfigError
from data_pipeline.datasets.index import IndexEntry
from data_pipeline.errors import InputError, check_fractions

_SEED = 2**128
_COUNTER = 2**32


class StreamUse(IntEnum):
    """What a random stream is for; streams for different uses are independent."""

    CHOICE = 0
    TRANSFORM = 1
    RECYCLING = 2
    DROPOUT = 3


def random_stream(seed: int, use: StreamUse, *counters: int) -> np.random.Generator:
    """The random stream that belongs to a seed, a use and these counters (step, place, ...), and to nothing else."""
    if not 0 <= seed < _SEED or not all(0 <= counter < _COUNTER for counter in counters):
        raise ValueError(f"seed and counters must be at least 0 and below 2**128 and 2**32, got {seed} and {counters}")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(use), *counters)))


def num_passes(seed: int, step: int, max_passes: int) -> int:
    """How often the network runs on this step's examples, recycling between: 1 to `max_passes`, equally likely.

    The same on every rank, as all wait for the slowest (AlphaFold 2, Suppl. Alg. 31).
    """
    return 1 + int(random_stream(seed, StreamUse.RECYCLING, step).integers(max_passes))


@dataclass(frozen=True, kw_only=True)
class ChainSelection(Config):
    """Which chains of the index may be drawn, and how experiments and predictions are mixed.

    The first two are about experimental structures. Those without a date are left out where a date is asked for, as
    they might be newer; those without a resolution (NMR) stay, as in AlphaFold.
    """

    released_until: date | None = None
    max_resolution: float | None = None  # Angstrom
    # Share of examples from the self-distillation set where there is one. AlphaFold 2, Suppl. Sec. 1.2.4.
    distillation_probability: float = 0.75
    # Share of the experimental examples whose alignment has `aligned_rows` rows or more, where chains are of both
    # kinds; None draws all alike.
    aligned_probability: float | None = None
    aligned_rows: int = 16

    def __post_init__(self) -> None:
        check_fractions(self, "distillation_probability", error=ConfigError)
        if self.aligned_probability is not None:
            check_fractions(self, "aligned_probability", error=ConfigError)
        if self.aligned_rows < 2:
            raise ConfigError(f"aligned_rows must be at least 2: every alignment has 1, got {self.aligned_rows}")
        if self.max_resolution is not None and not self.max_resolution > 0:
            raise ConfigError(f"max_resolution must be above 0 (Angstrom), got {self.max_resolution}")

    def admits(self, entry: IndexEntry) -> bool:
        if entry.is_distillation:
            return self.distillation_probability > 0
        if self.distillation_probability == 1:
            return False
        if self.released_until is not None and not (entry.release_date and entry.release_date <= self.released_until):
            return False
        return self.max_resolution is None or entry.resolution is None or entry.resolution <= self.max_resolution


def acceptance(length: Int[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
    """Probability with which a chain of this length is accepted (AlphaFold 2, Suppl. Sec. 1.2.5)."""
    return np.clip(length, 256, 512) / 512


@dataclass(frozen=True, kw_only=True)
class _WeightedChains:
    """Some chains of the index, each drawn with its own probability."""

    chains: Int[np.ndarray, "n"]  # places in the index
    cumulative: Float64[np.ndarray, "n"]  # of the weights, up to and including each chain's

    @classmethod
    def of(cls, entries: Sequence[IndexEntry], chains: Sequence[int]) -> "_WeightedChains":
        sizes = Counter(entries[chain].cluster for chain in chains)
        size = np.array([sizes[entries[chain].cluster] for chain in chains], np.int64)
        length = np.array([entries[chain].length for chain in chains], np.int64)
        return cls(chains=np.array(chains, np.int64), cumulative=np.cumsum(acceptance(length) / size))

    def probabilities(self) -> Float64[np.ndarray, "n"]:
        return np.diff(self.cumulative, prepend=0) / self.cumulative[-1]

    def draw(self, rng: np.random.Generator) -> int:
        # A draw below 1 times the sum may round up to the sum itself.
        place = np.searchsorted(self.cumulative, rng.random() * self.cumulative[-1], side="right")
        return int(self.chains[min(int(place), len(self.chains) - 1)])


class ChainSampler:
    """Draws chains: a cluster has one chance however many chains it has, and long chains a better one than short.

    AlphaFold 2, Suppl. Sec. 1.2.4 and 1.2.5: the probability of a chain is inverse to the size of its cluster (among
    the chains that may be drawn) times its length's `acceptance`; predictions and experiments have a lottery each, and
    so have experiments with an alignment if their share is given.
    """

    def __init__(self, entries: Sequence[IndexEntry], selection: ChainSelection) -> None:
        admitted = [chain for chain, entry in enumerate(entries) if selection.admits(entry)]
        predicted = [chain for chain in admitted if entries[chain].is_distillation]
        experimental = [chain for chain in admitted if not entries[chain].is_distillation]
        share = selection.distillation_probability if predicted else 0.0
        if not experimental and share < 1:
            raise InputError(_why_none(entries, selection))
        self._size = len(entries)
        kinds: list[tuple[float, Sequence[int]]] = [(share, predicted)]
        kinds += [((1 - share) * part, chains) for part, chains in _by_alignment(entries, experimental, selection)]
        # Of all examples so many are drawn by each.
        self._lotteries = [(part, _WeightedChains.of(entries, chains)) for part, chains in kinds if part > 0]

    def draw(self, rng: np.random.Generator) -> int:
        """The place of one chain in the index."""
        left = rng.random()
        for share, lottery in self._lotteries[:-1]:
            if left < share:
                return lottery.draw(rng)
            left -= share
        return self._lotteries[-1][1].draw(rng)

    def probabilities(self) -> Float64[np.ndarray, "n"]:
        """How likely each chain of the index is at each draw."""
        probabilities = np.zeros(self._size)
        for share, lottery in self._lotteries:
            probabilities[lottery.chains] = share * lottery.probabilities()
        return probabilities


def _by_alignment(
    entries: Sequence[IndexEntry], experimental: Sequence[int], selection: ChainSelection
) -> list[tuple[float, Sequence[int]]]:
    """Experimental chains by whether they have an alignment, and the share of each kind; all as one if nobody asks."""
    aligned = [chain for chain in experimental if entries[chain].msa_rows >= selection.aligned_rows]
    share = selection.aligned_probability
    if share is None or not 0 < len(aligned) < len(experimental):
        return [(1.0, experimental)]
    alone = [chain for chain in experimental if entries[chain].msa_rows < selection.aligned_rows]
    return [(share, aligned), (1 - share, alone)]


def _why_none(entries: Sequence[IndexEntry], selection: ChainSelection) -> str:
    if selection.distillation_probability == 1:
        return "the training set has no predicted chains; add some, or set distillation_probability below 1"
    experimental = sum(not entry.is_distillation for entry in entries)
    if not experimental:
        return (
            f"the training set has no experimental chains ({len(entries)} in all); "
            "add some, or set distillation_probability to 1"
        )
    limits = (
        ("released until", selection.released_until),
        ("resolution at most", selection.max_resolution),
    )
    asked = ", ".join(f"{what} {limit}" for what, limit in limits if limit is not None)
    return f"none of the {experimental} experimental chains meets the selection ({asked}); allow more"
