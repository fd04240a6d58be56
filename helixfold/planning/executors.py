"""Choice of the executor for a prediction from forecasts of memory, and a fallback if a forecast was too low.

A pass is one recycling iteration of the network.
"""

import gc
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from helixfold.execution import allocator
from helixfold.execution.available import available_memory, free_disk, limit_memory
from helixfold.execution.recorded_passes import bucket_size
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.whole import Whole
from helixfold.model.config import ModelConfig
from helixfold.ops.card import Card
from helixfold.planning.prediction import EXECUTORS, forecast_prediction
from helixfold.planning.size import Forecast, PassSize, gib

# Factor by which available memory must exceed a forecast: forecasts are right within a tenth.
RESERVE = 1.1
# Most residues of a chain for which the executor "whole" is chosen on a CPU, and the share of available memory that it
# may take there. It saves up to 7 % of the time of short chains; from 256 residues on slabs take no longer. Because of
# the share, the choice hardly ever depends on other programs' memory. A GPU, whose memory other programs seldom share,
# computes whole streams wherever they fit: every slab launches all kernels of an update again.
WHOLE_RESIDUES, WHOLE_SHARE = 256, 0.5
# Of a GPU's memory that slabs leave free, the share that their temporaries may take, and the most bytes of these: with
# more, even the longest chains have slabs of hundreds of rows, whose kernels take much longer than their launches.
_SLAB_SHARE, _MOST_OF_SLABS = 0.5, 8 * 2**30
# Most residues of a chain whose memory is forecast for rounded sizes, on a GPU and on a CPU.
_SHORT, _SHORT_ON_CPU = 512, 128
# Lengths whose forecasts define the curve of memory by residues, as multiples of the given length.
_STEPS = (1, 2, 4)
# How many times as long as the longest chain with a forecast the next one may be, the share by which a length may
# differ from one that is near it, and the most forecasts.
_FARTHEST, _NEAR, _MOST_FORECASTS = 8, 0.1, 9
# A peak in bytes beside which it does not matter what a few objects hold.
_LITTLE = 2**28


class NotEnoughMemoryError(RuntimeError):
    """Error for a target that does not fit into memory; the text has needed and available memory, and remedies."""


@dataclass(frozen=True, kw_only=True)
class AvailableMemory:
    """Available memory for a pass in bytes: of the device, and of the disk or GPU's host that takes spilled streams."""

    memory: int
    spill: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Executor for passes of one size, with the model, memory and device for which it was chosen.

    `slab_budget` is the bytes that temporaries of a slab may take; None is a small share of the stream.
    """

    config: ModelConfig
    size: PassSize
    available: AvailableMemory
    card: Card
    executor: str
    slab_budget: int | None = None

    def forecast(self, executor: str) -> Forecast:
        """Return the forecast of the pass's memory with the executor of that name, with small slabs."""
        return _forecast(self.config, self.size, executor, self.card)

    @property
    def estimate(self) -> Forecast:
        """Return the forecast of the pass's memory with the chosen executor and its slabs."""
        return _forecast(self.config, self.size, self.executor, self.card, self.slab_budget)

    @property
    def fallbacks(self) -> "Iterator[Plan]":
        """Yield the plans to try when this one runs out of memory: smaller slabs, then the next executors."""
        names = EXECUTORS[EXECUTORS.index(self.executor) + (self.slab_budget is None) :]
        return (replace(self, executor=name, slab_budget=None) for name in names)

    @property
    def fits(self) -> bool:
        return _fits(self.estimate, self.available)

    @property
    def problem(self) -> str:
        """Return a sentence for the user with the needed and the available memory, and with changes that would fit."""
        least = min((self.forecast(name) for name in EXECUTORS), key=lambda each: each.peak)
        each = f", on each of {self.size.ranks} ranks" if self.size.ranks > 1 else ""
        needs = f"{self.size.residues:,} residues need {_needed(least)} of memory (a tenth of reserve included{each})"
        has = f"there are {gib(self.available.memory)}"
        if least.spilled > self.available.spill:
            needs += f" and {gib(least.spilled)} to spill to"
            has += f" and {gib(self.available.spill)}"
        return f"{needs}; {has}; what would fit: {', or '.join(self._remedies())}"

    def _remedies(self) -> Iterator[str]:
        size = self.size
        short = replace(size, dtype=torch.bfloat16)
        if short != size and self._has_room(short):
            yield "--dtype bfloat16"
        for each, option in ((size, ""), (short, "--dtype bfloat16 ")):
            if rows := self._most_extra_rows(each):
                yield f"{option}--max-extra-rows {rows}"
                break
        residues = max(longest(self.config, size, self.available, self.card, name) for name in ("slabs", "spilled"))
        if residues:
            yield f"at most {residues:,} residues"
        slabs, spilled = self.forecast("slabs"), self.forecast("spilled")
        if spilled.spilled <= self.available.spill:
            yield f"{_needed(spilled)} of memory"
        else:
            yield f"{_needed(slabs)} of memory"
            memory = "" if spilled.peak * RESERVE <= self.available.memory else f"{_needed(spilled)} of memory and "
            yield f"{memory}{gib(spilled.spilled)} to spill to"

    def _most_extra_rows(self, size: PassSize) -> int:
        """Return the largest of a half, a quarter, ... of the extra MSA's rows that fits; 0 if none does."""
        rows = size.extra_rows // 2
        while rows and not self._has_room(replace(size, extra_rows=rows)):
            rows //= 2
        return rows

    def _has_room(self, size: PassSize) -> bool:
        return any(_fits(_forecast(self.config, size, name, self.card), self.available) for name in EXECUTORS)


def read_available_memory(device: torch.device, directory: Path, memory: int | None = None) -> AvailableMemory:
    """Return the bytes that are available now on a device, or `memory` if given, and for spilled streams.

    On a CPU streams are spilled to `directory`, on a GPU to the host's memory.
    """
    free = available_memory(device) if memory is None else memory
    spill = free_disk(directory) if device.type == "cpu" else available_memory(torch.device("cpu"))
    return AvailableMemory(memory=free, spill=spill)


def plan(
    config: ModelConfig, size: PassSize, available: AvailableMemory, card: Card, forced: str | None = None
) -> Plan:
    """Return a plan with the first of the executors whole, slabs and spilled that fits, or with the `forced` one.

    Slabs on a GPU are as large as the memory that is left allows. If no executor fits the plan has the last one, and
    `Plan.fits` is False.
    """
    chosen = forced or next(
        (name for name in EXECUTORS if _is_chosen(name, config, size, available, card)), EXECUTORS[-1]
    )
    small = Plan(config=config, size=size, available=available, card=card, executor=chosen)
    if chosen == "whole" or not card.has_own_memory:
        return small
    large = replace(small, slab_budget=_slab_budget(available.memory - int(RESERVE * small.estimate.peak)))
    return large if large.fits else small


def _slab_budget(free: int) -> int | None:
    """Return the bytes for temporaries of slabs on a GPU with `free` bytes left, a power of 2; None if there are none.

    Plans for nearly the same memory are then the same, and their forecasts are made once.
    """
    budget = min(_MOST_OF_SLABS, int(_SLAB_SHARE * free))
    return 1 << budget.bit_length() - 1 if budget > 0 else None


def longest(config: ModelConfig, size: PassSize, available: AvailableMemory, card: Card, executor: str) -> int:
    """Return the number of residues of the longest chain that fits with an executor, all else being equal.

    It is read from quadratic curves through the forecasts for the three nearest lengths. Slabs take
    another share of the memory of long chains than of short ones, so forecasts are added until one is near.
    """
    found: dict[int, tuple[float, int]] = {}
    lengths = [max(16, size.residues) * step for step in _STEPS]
    while True:
        for length in lengths:
            forecast = forecast_prediction(config, replace(size, residues=length), executor, card)
            found[length] = RESERVE * forecast.peak, forecast.spilled
        nearest = sorted(found, key=lambda length: abs(math.log(length / lengths[-1])))[:3]
        memory, spill = np.polyfit(nearest, [found[length] for length in nearest], 2).T

        def is_too_long(residues: int, memory: np.ndarray = memory, spill: np.ndarray = spill) -> bool:
            return bool(
                np.polyval(memory, residues) > available.memory or np.polyval(spill, residues) > available.spill
            )

        most = bisect_left(range(1, _FARTHEST * max(found)), x=True, key=is_too_long)
        if not most or len(found) == _MOST_FORECASTS or any(abs(most / length - 1) < _NEAR for length in found):
            return most
        lengths = [most]


def executor(
    name: str, directory: Path, device: torch.device | str = "cpu", slab_budget: int | None = None
) -> Whole | Slabs:
    """Return a new executor: "whole", "slabs" or "spilled", which on a CPU spills streams to files in `directory`.

    `slab_budget` is the bytes that temporaries of a slab may take; None is a small share of the stream.
    """
    if name == "spilled":
        return Spilled(directory, slab_budget, device=device)
    return Slabs(slab_budget) if name == "slabs" else Whole()


def memory_kept(name: str, ranks: int = 1) -> AbstractContextManager[None]:
    """Return a context in which a CPU's allocator keeps freed memory as it suits an executor (see `allocator`).

    `ranks` is the number of ranks that share a sample.
    """
    if name == "whole":
        return allocator.keeping_freed_memory(allocator.OF_WHOLE)
    # Each of several ranks has a smaller part of a stream, and smaller slabs of it: unused memory weighs more.
    return allocator.keeping_freed_memory(allocator.OF_SLABS // ranks**2, allocator.AHEAD // ranks**2)


def fit_together(plans: Sequence[Plan]) -> bool:
    """Return whether targets with these plans are all computed whole, and fit into memory in the same passes."""
    names = ("residues", "msa_rows", "extra_rows", "templates")
    padded = {name: max(getattr(plan.size, name) for plan in plans) for name in names}
    largest = replace(plans[0], size=replace(plans[0].size, **padded))
    # Each of them takes as much as one alone, or less.
    return all(plan.executor == "whole" for plan in plans) and (
        len(plans) * RESERVE * largest.forecast("whole").peak <= largest.available.memory
    )


def bounded_memory(device: torch.device, available: AvailableMemory) -> AbstractContextManager[None]:
    """Return a context that limits a CPU's memory to `available`, or to what is free if that is more.

    A GPU's allocator fails by itself.
    """
    return limit_memory(max(available.memory, available_memory(device))) if device.type == "cpu" else nullcontext()


def release(device: torch.device, *, peak: int | None = None) -> None:
    """Return all memory that is no longer used, on the device and on the host, to the system.

    Before a computation that takes little, whose forecast is `peak`, old objects are not looked through: that takes a
    tenth of the time of folding a peptide.
    """
    gc.collect(1 if peak is not None and peak < _LITTLE else 2)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    allocator.return_free_memory()


def _needed(forecast: Forecast) -> str:
    return gib(int(forecast.peak * RESERVE))


def _is_chosen(name: str, config: ModelConfig, size: PassSize, available: AvailableMemory, card: Card) -> bool:
    takes_any = name != "whole" or card.has_own_memory
    if not takes_any and size.residues > WHOLE_RESIDUES:
        return False
    forecast = _forecast(config, size, name, card)
    return _fits(forecast, available) and (takes_any or forecast.peak <= WHOLE_SHARE * available.memory)


def _forecast(
    config: ModelConfig, size: PassSize, executor: str, card: Card, slab_budget: int | None = None
) -> Forecast:
    """Return the forecast of a pass; for short chains, of one of rounded sizes (`bucket_size`).

    A GPU folds many of them in the time of a forecast, and a CPU some; either has memory enough for all.
    """
    if size.residues <= (_SHORT if card.has_own_memory else _SHORT_ON_CPU):
        size = replace(
            size,
            residues=bucket_size(size.residues),
            msa_rows=bucket_size(size.msa_rows),
            extra_rows=bucket_size(size.extra_rows),
        )
    return forecast_prediction(config, size, executor, card, slab_budget)


def _fits(forecast: Forecast, available: AvailableMemory) -> bool:
    return forecast.peak * RESERVE <= available.memory and forecast.spilled <= available.spill
