"""Conversion between our state dict and the arrays of DeepMind's parameter files, `params_model_*.npz`.

`SCOPE` is the first part of the names of DeepMind's arrays.
"""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from helixfold.model.config import ModelConfig
from helixfold.weights.conversion import ParameterMapping, to_ours, to_theirs
from helixfold.weights.table import table

SCOPE = "alphafold/alphafold_iteration"


def rows(config: ModelConfig) -> tuple[ParameterMapping, ...]:
    """Return the mappings between our state dict and DeepMind's arrays for a model with these settings."""
    return tuple(
        ParameterMapping(
            ours=tuple(
                name.replace("*", str(block)) for block in range(parameter.blocks or 1) for name in parameter.ours
            ),
            theirs=tuple(f"{SCOPE}/{name}" for name in parameter.alphafold),
            axes=parameter.axes,
            stacked=parameter.blocks is not None,
            parts=len(parameter.ours),
        )
        for parameter in table(config)
    )


def to_state_dict(arrays: Mapping[str, np.ndarray], config: ModelConfig) -> dict[str, Tensor]:
    """Convert DeepMind's float32 arrays to our state dict.

    Each array is looked up once, so a lazily read mapping needs little memory beyond the result. Raise `InputError` if
    names are missing or unknown.
    """
    return to_ours(rows(config), arrays)


def from_state_dict(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, np.ndarray]:
    """Convert our state dict to DeepMind's float32 arrays, sorted by name, the exact inverse of `to_state_dict`.

    Raise `InputError` if names are missing or unknown.
    """
    arrays = to_theirs(rows(config), {name: tensor.detach().cpu() for name, tensor in state.items()})
    return {name: arrays[name].float().numpy() for name in sorted(arrays)}
