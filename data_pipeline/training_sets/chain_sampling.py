"""Random sampling of training chains, which depends only on the seed, the step and the index in the batch.

A run can therefore resume at any step without replaying earlier ones, and the samples do not depend on the number or
speed of workers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import IntEnum
from typing import Annotated

import numpy as np
from jaxtyping import Float64, Int

from data_pipeline.io.config import FRACTION, POSITIVE, Config, at_least
from data_pipeline.io.errors import InputError
from data_pipeline.training_sets.index import IndexEntry

_MAX_SEED = 2**128
_MAX_COUNTER = 2**32


class StreamUse(IntEnum):
    """Uses of random streams; streams for different uses are independent.

    `CHOICE` is for the choice of chains, `TRANSFORM` for cropping and sampling of an example, `RECYCLING` for the
    number of recycling iterations, and `DROPOUT` for dropout masks.
    """

    CHOICE = 0
    TRANSFORM = 1
    RECYCLING = 2
    DROPOUT = 3


def random_stream(seed: int, use: StreamUse, *counters: int) -> np.random.Generator:
    """Return the random generator for a seed (below 2**128), a use, and counters such as step and index in the batch.

    Raise `ValueError` if the seed or a counter (each below 2**32) is out of range.
    """
    if not 0 <= seed < _MAX_SEED or not all(0 <= counter < _MAX_COUNTER for counter in counters):
        raise ValueError(f"seed and counters must be at least 0 and below 2**128 and 2**32, got {seed} and {counters}")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(use), *counters)))


def num_passes(seed: int, step: int, max_passes: int) -> int:
    """Sample the number of recycling iterations of a step uniformly from 1 to `max_passes`.

    It is the same on all ranks, because all ranks wait for the slowest (AlphaFold 2, Suppl. Alg. 31).
    """
    return 1 + int(random_stream(seed, StreamUse.RECYCLING, step).integers(max_passes))


@dataclass(frozen=True, kw_only=True)
class ChainSelection(Config):
    """Settings of the chains to sample, and of the mixture of experimental and predicted structures.

    `released_until` and `max_resolution` only apply to experimental structures. With `released_until`, structures
    without a date are excluded, because they might be newer. Structures without a resolution (NMR) are allowed, as in
    AlphaFold. `distillation_probability` is the fraction of examples with predicted structures, if the index has some.
    `aligned_probability` is the fraction of the experimental examples with at least `aligned_rows` MSA rows, if there
    are chains with more and with fewer; None does not distinguish them.
    """

    released_until: date | None = None  # latest release of experimental structures
    max_resolution: Annotated[float | None, POSITIVE] = None  # Å
    # Fraction of examples from the self-distillation set, if the index has one (AlphaFold 2, Suppl. Sec. 1.2.4).
    distillation_probability: Annotated[float, FRACTION] = 0.75
    # Fraction of the experimental examples with at least `aligned_rows` alignment rows, if there are chains with more
    # and with fewer rows; None does not distinguish them.
    aligned_probability: Annotated[float | None, FRACTION] = None
    aligned_rows: Annotated[int, at_least(2)] = 16  # MSA depth that counts as aligned

    def admits(self, entry: IndexEntry) -> bool:
        """Return whether a chain may be sampled; probabilities of 0 and 1 exclude predicted or experimental ones."""
        if entry.is_distillation:
            return self.distillation_probability > 0
        if self.distillation_probability == 1:
            return False
        if self.released_until is not None and not (entry.release_date and entry.release_date <= self.released_until):
            return False
        return self.max_resolution is None or entry.resolution is None or entry.resolution <= self.max_resolution


def acceptance(length: Int[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
    """Return the probability of accepting chains of these lengths in residues: 0.5 to 256, 1 from 512, else linear.

    AlphaFold 2, Suppl. Sec. 1.2.5.
    """
    return np.clip(length, 256, 512) / 512


@dataclass(frozen=True, kw_only=True)
class _WeightedChains:
    """Chains with sampling probabilities that depend on cluster size and length."""

    chains: Int[np.ndarray, "n"]  # row numbers in the index
    cumulative: Float64[np.ndarray, "n"]  # sum of the weights up to and including each chain

    @classmethod
    def of(cls, entries: Sequence[IndexEntry], chains: Sequence[int]) -> "_WeightedChains":
        sizes = Counter(entries[chain].cluster for chain in chains)
        size = np.array([sizes[entries[chain].cluster] for chain in chains], np.int64)
        length = np.array([entries[chain].length for chain in chains], np.int64)
        return cls(chains=np.array(chains, np.int64), cumulative=np.cumsum(acceptance(length) / size))

    def draw(self, rng: np.random.Generator) -> int:
        # A random number below 1 times the sum may be rounded up to the sum itself.
        place = np.searchsorted(self.cumulative, rng.random() * self.cumulative[-1], side="right")
        return int(self.chains[min(int(place), len(self.chains) - 1)])


class ChainSampler:
    """Sampler of chains that gives all clusters the same weight and prefers long chains.

    The weight of a chain is the `acceptance` of its length, divided by the number of allowed chains in its cluster
    (AlphaFold 2, Suppl. Sec. 1.2.4 and 1.2.5). Predicted and experimental structures are sampled separately and mixed
    by `distillation_probability`; large and small alignments too if `aligned_probability` is set. Raise `InputError` if
    no chain is allowed.
    """

    def __init__(self, entries: Sequence[IndexEntry], selection: ChainSelection) -> None:
        admitted = [chain for chain, entry in enumerate(entries) if selection.admits(entry)]
        predicted = [chain for chain in admitted if entries[chain].is_distillation]
        experimental = [chain for chain in admitted if not entries[chain].is_distillation]
        share = selection.distillation_probability if predicted else 0.0
        if not experimental and share < 1:
            raise InputError(_why_none(entries, selection))
        kinds: list[tuple[float, Sequence[int]]] = [(share, predicted)]
        kinds += [((1 - share) * part, chains) for part, chains in _by_alignment(entries, experimental, selection)]
        # Fractions of the examples with the chains to sample them from.
        self._lotteries = [(part, _WeightedChains.of(entries, chains)) for part, chains in kinds if part > 0]

    def draw(self, rng: np.random.Generator) -> int:
        """Sample one chain and return its index in `entries`, from 0."""
        remaining = rng.random()
        for share, lottery in self._lotteries[:-1]:
            if remaining < share:
                return lottery.draw(rng)
            remaining -= share
        return self._lotteries[-1][1].draw(rng)


def _by_alignment(
    entries: Sequence[IndexEntry], experimental: Sequence[int], selection: ChainSelection
) -> list[tuple[float, Sequence[int]]]:
    """Split experimental chains by `aligned_rows`, and return each group with its fraction of the examples."""
    aligned = [chain for chain in experimental if entries[chain].msa_rows >= selection.aligned_rows]
    share = selection.aligned_probability
    if share is None or not 0 < len(aligned) < len(experimental):
        return [(1.0, experimental)]
    unaligned = [chain for chain in experimental if entries[chain].msa_rows < selection.aligned_rows]
    return [(share, aligned), (1 - share, unaligned)]


def _why_none(entries: Sequence[IndexEntry], selection: ChainSelection) -> str:
    """Return the message for a selection that no chain meets."""
    if selection.distillation_probability == 1:
        return "the training set has no predicted chains; add some, or set distillation_probability below 1"
    experimental = sum(not entry.is_distillation for entry in entries)
    if not experimental:
        return (
            f"the training set has no experimental chains ({len(entries)} chains in total); "
            "add some, or set distillation_probability to 1"
        )
    limits = (
        ("released until", selection.released_until),
        ("resolution at most", selection.max_resolution),
    )
    criteria = ", ".join(f"{what} {limit}" for what, limit in limits if limit is not None)
    return f"none of the {experimental} experimental chains meets the criteria ({criteria}); allow more"
