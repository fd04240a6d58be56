"""A training run as a workload whose layouts can be compared."""

from helixfold.inference import DTYPES
from helixfold.planning.layouts import Workload
from helixfold.training.config import TrainingConfig
from helixfold.training.memory import needs, parameter_count


def workload(config: TrainingConfig) -> Workload:
    """Return what a step of this run takes, on however many ranks."""
    return Workload(
        needs=needs(config),
        recompute=config.recompute,
        parts=config.parts,
        # Each step draws its number of passes from 1 to the most; the last of them learns.
        passes=(config.example.max_passes - 1) / 2,
        parameters=parameter_count(config.model),
        gradient_itemsize=DTYPES[config.reduction].itemsize,
        clips_samples=config.optimizer.clipping == "sample",
    )
