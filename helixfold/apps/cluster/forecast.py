"""Forecast for each pool of a cluster which targets fit into its memory, and how long they take there.

Memory is forecast as for a run on one machine, for a described card. Times are a first guess from counted products and
published rates; the pace that a pool shows corrects them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch

from helixfold.apps.cluster.schedule import PoolForecast
from helixfold.apps.cluster.site import Pool
from helixfold.execution.available import available_memory
from helixfold.execution.device import dtype_on
from helixfold.model.config import ModelConfig
from helixfold.model.presets import Preset
from helixfold.ops.card import CARDS, Card
from helixfold.planning.duration import pass_work
from helixfold.planning.executors import AvailableMemory, longest
from helixfold.planning.memory import FeatureRows
from helixfold.planning.size import PassSize

# Share of a GPU's memory that is left for tensors, and what a process takes of a node's memory beside them.
_MEMORY_LEFT, _PROCESS = 0.92, 2**30
_DISK = 2**40  # for what a processor spills, where nothing is known of it
# FLOP per second in 16 bits with float32 sums, from data sheets, and the share of them that a prediction reaches.
_PRODUCTS = {
    "t4": 65e12,
    "l4": 121e12,
    "rtx3090": 71e12,
    "rtx4090": 165e12,
    "a100": 312e12,
    "a100-80": 312e12,
    "h100": 989e12,
    "h200": 989e12,
}
_REACHED, _PRODUCTS_OF_CORE = 0.2, 30e9
_SECONDS_PER_CALL = 1e-5
# Lengths at which the work of a pass is counted, and those of whose forecasts of memory a curve is drawn.
_COUNTED = (128, 512, 1024)
_MEASURED_FROM = 256
# A first guess of the seconds that a search and the making of features take for each residue of a target.
_SEARCH_SECONDS = 0.2
_ANY_LENGTH = 10**9


def card_of_pool(pool: Pool) -> Card:
    """Return the description of the device that a worker of a pool computes on."""
    if pool.card is not None:
        return CARDS[pool.card]
    return replace(CARDS["cpu"], memory=memory_for_tensors(pool), multiprocessors=pool.threads or 1)


def forecast_of_search(pool: Pool) -> PoolForecast:
    """Return what is known beforehand of the pool that searches; every target fits there."""
    return PoolForecast(
        name=pool.name,
        slots=pool.slots,
        longest=_ANY_LENGTH,
        seconds=lambda residues: _SEARCH_SECONDS * residues,
        task_seconds=60 * pool.task_minutes,
    )


def forecast_of_pool(
    pool: Pool, presets: Sequence[Preset], *, dtype: str, passes: Sequence[int], ensemble: int, templates: bool
) -> PoolForecast:
    """Return the longest target that fits into a worker's memory with every model, and the seconds of a target.

    `passes` are those of a target by each model. Alignments are taken to be as large as the models read.
    """
    card = card_of_pool(pool)
    computes_in = dtype_on(dtype, card)
    sizes = [
        FeatureRows.at_most(_MEASURED_FROM, preset.sampling, templates=templates).size(preset, computes_in, ensemble)
        for preset in presets
    ]
    host = memory_for_tensors(pool)
    if card.has_own_memory:
        available = AvailableMemory(memory=int(_MEMORY_LEFT * card.memory), spill=host)
    else:
        available = AvailableMemory(memory=host, spill=_DISK)
    fitting = [
        max(longest(preset.model, size, available, card, name) for name in ("slabs", "spilled"))
        for preset, size in zip(presets, sizes, strict=True)
    ]
    rate = _REACHED * _PRODUCTS[pool.card] if pool.card is not None else _PRODUCTS_OF_CORE * (pool.threads or 1)
    works = [_work_by_length(preset.model, size) for preset, size in zip(presets, sizes, strict=True)]

    @cache
    def seconds(residues: int) -> float:
        return sum(
            count * ensemble * (work(residues) / rate + calls * _SECONDS_PER_CALL)
            for count, (work, calls) in zip(passes, works, strict=True)
        )

    return PoolForecast(
        name=pool.name,
        slots=pool.slots,
        longest=min(fitting, default=0),
        seconds=seconds,
        task_seconds=60 * pool.task_minutes,
    )


def memory_for_tensors(pool: Pool) -> int:
    """Return the bytes of a node's memory that are left for the tensors of a worker."""
    memory = pool.memory_of_worker
    if memory is None:
        memory = available_memory(torch.device("cpu")) // pool.workers
    return max(0, memory - _PROCESS)


@cache
def _work_by_length(config: ModelConfig, size: PassSize) -> tuple[Callable[[int], float], int]:
    """Return the products of a pass by the number of residues, as a cubic curve, and its number of operators."""
    alike = replace(size, ensemble=1, ranks=1, dtype=torch.float32)
    found = [pass_work(config, replace(alike, residues=length)) for length in _COUNTED]
    terms = np.array([(length, length**2, length**3) for length in _COUNTED], dtype=np.float64)
    factors = np.linalg.solve(terms, np.array([products for products, _, _ in found]))

    def products(residues: int) -> float:
        return max(0.0, float(np.array([residues, residues**2, residues**3]) @ factors))

    return products, found[0][2]
