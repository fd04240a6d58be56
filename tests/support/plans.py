"""Plans from a simple estimate of memory, proportional to the residues and growing with the extra rows."""

from dataclasses import replace

import torch

from helixfold.model.config import ModelConfig
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties
from helixfold.planning.estimate import Device, Prediction, PredictionEstimate, estimate
from helixfold.planning.executors import EXECUTORS
from helixfold.planning.size import Memory, PassSize

GIB = 2**30
SIZE = PassSize(residues=1000, msa_rows=500, extra_rows=1000, templates=4, dtype=torch.float32)
DISK = 10**15
# GiB that `simple_estimate` returns for 1,000 residues and 1,000 extra rows in float32.
WHOLE, SLABS, SPILLED = 8, 4, 2


def simple_estimate(
    config: ModelConfig, size: PassSize, name: str, properties: DeviceProperties, slab_budget: int | None = None
) -> Memory:
    """Replace `helixfold.planning.estimate.prediction_memory`."""
    share = size.dtype.itemsize / 4 * size.residues / 1000 * (1000 + size.extra_rows) / 2000
    spilled = int(6 * GIB * share) if name == "spilled" else 0
    peak = int(dict(zip(EXECUTORS, (WHOLE, SLABS, SPILLED), strict=True))[name] * GIB * share)
    peak += slab_budget or 0
    return Memory(stages={"all": peak}, spilled=spilled)


def planned(
    gibibytes: float, disk: int = DISK, forced: str | None = None, device_model: str = "cpu", **size: int
) -> PredictionEstimate:
    """Return the estimate of a target of `SIZE`, with changed sizes, on a device with `gibibytes` of memory."""
    device = Device(properties=DEVICE_MODELS[device_model], memory=int(gibibytes * GIB), spill=disk)
    return estimate(Prediction(model=ModelConfig(), size=replace(SIZE, **size), executor=forced), device)
