"""Estimate for each pool of a cluster which targets fit into its memory, and how long they take.

Memory is estimated as for one machine with the device model of the pool. Times are a first guess from counted products
and published rates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from helixfold.apps.cluster.schedule import PoolEstimate
from helixfold.apps.cluster.site import Pool
from helixfold.execution.available import available_memory
from helixfold.execution.device import dtype_on
from helixfold.model.presets import Preset
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties
from helixfold.planning.estimate import REACHED_BY_GPU, TARGET_SECONDS, Device, Prediction, estimate, max_residues
from helixfold.planning.machines import MEMORY_LEFT, RATES
from helixfold.planning.memory import FeatureRows

# Bytes of a node's memory that a process needs in addition to tensors.
_PROCESS_BYTES = 2**30
_ASSUMED_DISK_BYTES = 2**40  # free disk space for spilled tensors, which is unknown for nodes
_FLOPS_OF_CORE = 30e9  # FLOP per second
# Numbers of residues at which the time of a target is estimated, and where the search for the longest target starts.
_COUNTED_RESIDUES = (32, 128, 512, 1024)
_LONGEST_SEARCH_START = 256
# A first guess of the seconds per residue for a search and its features.
_SEARCH_SECONDS_PER_RESIDUE = 0.2
_ANY_LENGTH = 10**9


def properties_of_pool(pool: Pool) -> DeviceProperties:
    """Return the properties of the device of a pool's workers: its GPU model, or a CPU with the memory for tensors."""
    if pool.card is not None:
        return DEVICE_MODELS[pool.card]
    return replace(DEVICE_MODELS["cpu"], memory=memory_for_tensors(pool), multiprocessors=pool.threads or 1)


def estimate_search(pool: Pool) -> PoolEstimate:
    """Estimate the times of searches in the search pool, which has no limit for the length of targets."""
    return PoolEstimate(
        name=pool.name,
        slots=pool.slots,
        longest=_ANY_LENGTH,
        seconds=lambda residues: _SEARCH_SECONDS_PER_RESIDUE * residues,
        task_seconds=60 * pool.task_minutes,
    )


def estimate_pool(
    pool: Pool, presets: Sequence[Preset], *, dtype: str, iterations: Sequence[int], ensemble: int, templates: bool
) -> PoolEstimate:
    """Estimate the longest target that fits into a worker's memory with every model, and the time of a target.

    `iterations` are the numbers of recycling iterations of a target with each model, and `templates` is whether targets
    have templates. MSAs are assumed to have the maximum depth that the models read.
    """
    device = _device(pool)

    def workloads(residues: int) -> Iterator[Prediction]:
        """Yield the work of predicting a target of this length with each model."""
        for preset, count in zip(presets, iterations, strict=True):
            rows = FeatureRows.at_most(residues, preset.sampling, templates=templates)
            size = rows.size(preset, dtype_on(dtype, device.properties), ensemble)
            yield Prediction(model=preset.model, size=size, recycling_iterations=count)

    seconds_by_length = [
        sum(estimate(work, device).seconds for work in workloads(length)) for length in _COUNTED_RESIDUES
    ]
    # The work of a recycling iteration is a cubic function of the number of residues.
    curve = np.polyfit(_COUNTED_RESIDUES, seconds_by_length, 3)
    return PoolEstimate(
        name=pool.name,
        slots=pool.slots,
        longest=min((max_residues(work, device) for work in workloads(_LONGEST_SEARCH_START)), default=0),
        seconds=lambda residues: TARGET_SECONDS + max(0.0, float(np.polyval(curve, residues))),
        task_seconds=60 * pool.task_minutes,
    )


def _device(pool: Pool) -> Device:
    """Return the device of a pool's workers, with the memory that is available for tensors."""
    properties, host_memory = properties_of_pool(pool), memory_for_tensors(pool)
    if pool.card is None:
        return Device(
            properties=properties,
            memory=host_memory,
            spill=_ASSUMED_DISK_BYTES,
            rate=_FLOPS_OF_CORE * (pool.threads or 1),
        )
    rate = REACHED_BY_GPU * RATES[pool.card].product
    return Device(properties=properties, memory=int(MEMORY_LEFT * properties.memory), spill=host_memory, rate=rate)


def memory_for_tensors(pool: Pool) -> int:
    """Return the bytes of a node's memory that are available for the tensors of one worker.

    If the file does not define the memory of nodes, they are assumed to have the free memory of this machine.
    """
    memory = pool.memory_of_worker
    if memory is None:
        memory = available_memory(torch.device("cpu")) // pool.workers
    return max(0, memory - _PROCESS_BYTES)
