"""Choose the dtype of a training run: the configured one, the dtype of its checkpoints, or one for its devices."""

from collections.abc import Callable
from pathlib import Path

from helixfold.execution.device import AUTO, common_dtype, settled_dtype
from helixfold.ops.device_properties import properties_of
from helixfold.parallel.mesh import Mesh
from helixfold.training.checkpoint import newest_record
from helixfold.training.config import TrainingConfig


def with_settled_dtype(
    config: TrainingConfig, mesh: Mesh, checkpoints: Path, say: Callable[[str], object] = lambda _: None
) -> TrainingConfig:
    """Replace the dtype "auto" with the dtype of the run's checkpoints, or in a new run with one for all devices.

    All ranks call this together and get the same result; only the first reads the directory `checkpoints`. `say` is
    called with a sentence about the choice, unless it is float32 and no other dtype would suit the devices better.
    """
    if config.dtype != AUTO:
        return config
    record = mesh.broadcast(newest_record(checkpoints) if mesh.is_first else None)
    saved_dtype = None if record is None else TrainingConfig.from_dict(record["config"]).dtype
    properties = properties_of(mesh.device)
    device_dtype = common_dtype(mesh.all_gather(settled_dtype(AUTO, properties)))
    if saved_dtype not in (None, device_dtype):
        say(f"computes in {saved_dtype}, in which the run began")
    elif device_dtype != "float32":
        say(
            f"computes in {device_dtype}, which suits {properties.name}; start with --set dtype=float32 for full "
            "precision"
        )
    return config.with_settings([f"dtype={saved_dtype or device_dtype}"])
