"""Forecast for each pool of a cluster which targets fit into its memory, and how long they take there.

Memory is forecast as for a run on one machine, for a described card. Times are a first guess from counted products and
published rates; the pace that a pool shows corrects them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from helixfold.apps.cluster.schedule import PoolForecast
from helixfold.apps.cluster.site import Pool
from helixfold.execution.available import available_memory
from helixfold.execution.device import dtype_on
from helixfold.model.presets import Preset
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties
from helixfold.planning.estimate import REACHED_BY_GPU, Device, Prediction, estimate, max_residues
from helixfold.planning.machines import MEMORY_LEFT, PRODUCTS
from helixfold.planning.memory import FeatureRows

# What a process takes of a node's memory beside tensors.
_PROCESS = 2**30
_DISK = 2**40  # for what a processor spills, where nothing is known of it
_PRODUCTS_OF_CORE = 30e9  # FLOP per second
# Lengths at which the time of a target is estimated, and the one from which the longest that fits is looked for.
_COUNTED = (32, 128, 512, 1024)
_MEASURED_FROM = 256
# A first guess of the seconds that a search and the making of features take for each residue of a target.
_SEARCH_SECONDS = 0.2
_ANY_LENGTH = 10**9


def properties_of_pool(pool: Pool) -> DeviceProperties:
    """Return the description of the device that a worker of a pool computes on."""
    if pool.card is not None:
        return DEVICE_MODELS[pool.card]
    return replace(DEVICE_MODELS["cpu"], memory=memory_for_tensors(pool), multiprocessors=pool.threads or 1)


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
    device = _device(pool)

    def workloads(residues: int) -> Iterator[Prediction]:
        for preset, count in zip(presets, passes, strict=True):
            rows = FeatureRows.at_most(residues, preset.sampling, templates=templates)
            size = rows.size(preset, dtype_on(dtype, device.properties), ensemble)
            yield Prediction(model=preset.model, size=size, recycling_iterations=count)

    counted = [sum(estimate(work, device).seconds for work in workloads(length)) for length in _COUNTED]
    # The work of a pass is a cubic function of the number of residues.
    curve = np.polyfit(_COUNTED, counted, 3)
    return PoolForecast(
        name=pool.name,
        slots=pool.slots,
        longest=min((max_residues(work, device) for work in workloads(_MEASURED_FROM)), default=0),
        seconds=lambda residues: max(0.0, float(np.polyval(curve, residues))),
        task_seconds=60 * pool.task_minutes,
    )


def _device(pool: Pool) -> Device:
    """Return the device of a pool's workers, with the memory that is left for a worker's tensors."""
    properties, host = properties_of_pool(pool), memory_for_tensors(pool)
    if pool.card is None:
        return Device(properties=properties, memory=host, spill=_DISK, rate=_PRODUCTS_OF_CORE * (pool.threads or 1))
    rate = REACHED_BY_GPU * PRODUCTS[pool.card]
    return Device(properties=properties, memory=int(MEMORY_LEFT * properties.memory), spill=host, rate=rate)


def memory_for_tensors(pool: Pool) -> int:
    """Return the bytes of a node's memory that are left for the tensors of a worker."""
    memory = pool.memory_of_worker
    if memory is None:
        memory = available_memory(torch.device("cpu")) // pool.workers
    return max(0, memory - _PROCESS)
