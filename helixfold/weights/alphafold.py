"""DeepMind's parameter files, `params_model_*.npz`: the same numbers under DeepMind's names, in and out."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from helixfold.config import ModelConfig
from helixfold.weights.conversion import Row, to_ours, to_theirs
from helixfold.weights.table import table

SCOPE = "alphafold/alphafold_iteration"


def rows(config: ModelConfig) -> tuple[Row, ...]:
    """The two-way table between our state dict and DeepMind's arrays for a model with these settings."""
    return tuple(
        Row(
            ours=tuple(parameter.ours.replace("*", str(block)) for block in range(parameter.blocks or 1)),
            theirs=tuple(f"{SCOPE}/{name}" for name in parameter.alphafold),
            axes=parameter.axes,
            stacked=parameter.blocks is not None,
        )
        for parameter in table(config)
    )


def to_state_dict(arrays: Mapping[str, np.ndarray], config: ModelConfig) -> dict[str, Tensor]:
    """Our state dict from DeepMind's float32 arrays.

    Each array is looked up once, so a mapping that reads when it is asked keeps memory near one copy.
    Raises `InputError` if names are missing or left over.
    """
    return to_ours(rows(config), arrays)


def from_state_dict(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, np.ndarray]:
    """DeepMind's arrays from our state dict; undoes `to_state_dict` bit for bit."""
    arrays = to_theirs(rows(config), {name: tensor.detach().cpu() for name, tensor in state.items()})
    return {name: arrays[name].float().numpy() for name in sorted(arrays)}
