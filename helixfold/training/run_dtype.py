"""The dtype of a training run: given, that of its checkpoints, or the one that suits its devices."""

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
    """Replace the dtype "auto" by that of the run's checkpoints, or in a new run by the one that suits all devices.

    All ranks call this together and get the same; only the first reads `checkpoints`, the directory. `say` is called
    with a sentence on the choice, unless it is float32.
    """
    if config.dtype != AUTO:
        return config
    record = mesh.broadcast(newest_record(checkpoints) if mesh.is_first else None)
    begun = None if record is None else TrainingConfig.from_dict(record["config"]).dtype
    properties = properties_of(mesh.device)
    suiting = common_dtype(mesh.all_gather(settled_dtype(AUTO, properties)))
    if begun not in (None, suiting):
        say(f"computes in {begun}, in which the run began")
    elif suiting != "float32":
        say(
            f"computes in {suiting}, which suits {properties.name}; --set dtype=float32 at the start computes exact "
            "products"
        )
    return config.with_settings([f"dtype={begun or suiting}"])
