"""Estimate of the time of a prediction, from a pass that is counted on meta tensors, and the speed of the device."""

from dataclasses import replace
from functools import cache

import torch

from helixfold.execution.counter import Counter
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.stages import mean_seconds
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import ModelConfig
from helixfold.ops.dispatch import forced
from helixfold.planning.prediction import META
from helixfold.planning.size import PassSize

# Share of the rate of a large matrix product that a whole pass reaches (docs/performance.md has the measurements on a
# CPU; for GPUs it is assumed, near NVIDIA's share in MLPerf HPC, see `planning.machines`), and seconds to call an
# operator.
_REACHED = {("cpu", torch.float32): 1.0, ("cpu", torch.bfloat16): 0.4}
_REACHED_BY_GPU, _CALL = 0.2, 1e-5
# Side of the matrices whose product is timed.
_SIDES = {"cpu": 1024}
_SIDE_OF_GPU = 4096
# Elements of a tensor whose copy is timed: more than a processor's caches hold.
_COPIED = 2**24
# Passes are counted for lengths that are multiples of this.
_STEP = 32


def prediction_seconds(config: ModelConfig, size: PassSize, device: torch.device, passes: int) -> float:
    """Return about how many seconds the passes of one prediction take, its ranks together.

    Searches, the making of features, relaxation and writing are not included.
    """
    counted = -(-size.residues // _STEP) * _STEP
    products, moved, calls = pass_work(
        config, replace(size, residues=counted, ensemble=1, ranks=1, dtype=torch.float32)
    )
    # The work grows with the square of the length, and faster where triangles dominate.
    shorter = (size.residues / counted) ** 2
    products, moved = products * shorter, moved * shorter
    reached = _REACHED.get((device.type, size.dtype), _REACHED_BY_GPU)
    busy = products / (reached * _product_rate(device, size.dtype) * size.ranks)
    if device.type == "cpu":  # the share that a GPU reaches includes what waits for its memory
        busy += moved / (_copy_rate() * size.ranks)
    return passes * size.ensemble * (busy + _CALL * calls)


@cache
def pass_work(config: ModelConfig, size: PassSize) -> tuple[float, float, int]:
    """Return the FLOP of a pass's matrix products, the bytes that it moves in float32, and its number of operators."""
    with torch.no_grad(), META, Counter() as counter, forced("reference"):
        model = AlphaFold(config).eval()
        batch = random_batch(size.residues, size.msa_rows, size.extra_rows, size.templates, META, method=config.method)
        counter.products = counter.moved = counter.launches = 0
        model.fold(Whole(), [batch], None, size.dtype)
    return counter.products, counter.moved, counter.launches


@cache
def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the FLOP per second of a large matrix product, which is measured in a fraction of a second."""
    side = _SIDES.get(device.type, _SIDE_OF_GPU)
    left = torch.ones(side, side, dtype=dtype, device=device)
    left @ left
    return float(2 * side**3 / mean_seconds(lambda: left @ left, 3, device))


@cache
def _copy_rate() -> float:
    """Return the bytes per second that a CPU reads and writes in a copy, measured in a fraction of a second."""
    source, target = torch.ones(_COPIED), torch.empty(_COPIED)
    target.copy_(source)
    return float(2 * source.nbytes / mean_seconds(lambda: target.copy_(source), 3))
