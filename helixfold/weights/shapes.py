"""Comparison of a parameter file's names and shapes with those of models."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from data_pipeline.errors import InputError
from helixfold.config import ModelConfig
from helixfold.model.alphafold import AlphaFold
from helixfold.presets import PRESETS
from helixfold.weights import alphafold, openfold
from helixfold.weights.conversion import ParameterMapping, Shapes, differences, shapes_of, their_shapes

Format = Literal["npz", "pt", "safetensors"]

_ROWS: dict[Format, Callable[[ModelConfig], tuple[ParameterMapping, ...]]] = {
    "npz": alphafold.rows,
    "pt": openfold.rows,
}
# Modules that AlphaFold-Multimer has and the monomer models do not, in DeepMind's and OpenFold's names.
_MULTIMER = ("/~_relative_encoding/", "template_embedder.linear_t.")


@cache
def model_shapes(config: ModelConfig) -> Shapes:
    """Return names and shapes of a model's state dict, without allocating its parameters."""
    with torch.device("meta"):
        return shapes_of(AlphaFold(config).state_dict())


@cache
def file_shapes(config: ModelConfig, form: Format) -> Shapes:
    """Return names and shapes of a model's parameters in a file format."""
    shapes = model_shapes(config)
    return their_shapes(_ROWS[form](config), shapes) if form in _ROWS else shapes


def matching_presets(shapes: Shapes, form: Format) -> tuple[str, ...]:
    """Return the presets whose models have exactly these parameters."""
    return tuple(name for name, preset in PRESETS.items() if file_shapes(preset().model, form) == shapes)


def require_shapes(path: Path, shapes: Shapes, config: ModelConfig, form: Format) -> None:
    """Raise `InputError` if names or shapes differ from the model's; it lists the differences and matching presets."""
    problem = differences(file_shapes(config, form), shapes)
    if not problem:
        return
    presets = matching_presets(shapes, form)
    if presets:
        advice = (
            f"it fits {', '.join(presets)}: choose {'this preset' if len(presets) == 1 else 'one of these presets'}"
        )
    elif any(part in name for name in shapes for part in _MULTIMER):
        advice = "these are parameters of AlphaFold-Multimer, which helixfold does not read: take a monomer model's"
    else:
        advice = "it fits no preset"
    raise InputError.at(path, f"does not fit this model: {problem}; {advice}")
