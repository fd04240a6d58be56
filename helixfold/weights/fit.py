"""Which model a parameter file is for, told from names and shapes alone."""

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
from helixfold.weights.conversion import Row, Shapes, differences, shapes_of, their_shapes

Format = Literal["npz", "pt", "safetensors"]

_ROWS: dict[Format, Callable[[ModelConfig], tuple[Row, ...]]] = {"npz": alphafold.rows, "pt": openfold.rows}
# Modules that AlphaFold-Multimer has and the monomer models do not, in DeepMind's and OpenFold's names.
_MULTIMER = ("/~_relative_encoding/", "template_embedder.linear_t.")


@cache
def model_shapes(config: ModelConfig) -> Shapes:
    """Names and shapes of a model's state dict; no memory is used for the numbers."""
    with torch.device("meta"):
        return shapes_of(AlphaFold(config).state_dict())


@cache
def file_shapes(config: ModelConfig, form: Format) -> Shapes:
    """Names and shapes of the file that such a model is written to."""
    shapes = model_shapes(config)
    return their_shapes(_ROWS[form](config), shapes) if form in _ROWS else shapes


def fitting_presets(found: Shapes, form: Format) -> tuple[str, ...]:
    """Presets whose models have exactly these parameters."""
    return tuple(name for name, preset in PRESETS.items() if file_shapes(preset().model, form) == found)


def require_fit(path: Path, found: Shapes, config: ModelConfig, form: Format) -> None:
    """One `InputError` that lists what is missing, unknown or misshapen, and the presets that the file does fit."""
    problem = differences(file_shapes(config, form), found)
    if not problem:
        return
    presets = fitting_presets(found, form)
    if presets:
        advice = (
            f"it fits {', '.join(presets)}: choose {'this preset' if len(presets) == 1 else 'one of these presets'}"
        )
    elif any(part in name for name in found for part in _MULTIMER):
        advice = "these are parameters of AlphaFold-Multimer, which helixfold does not read: take a monomer model's"
    else:
        advice = "it fits no preset"
    raise InputError.at(path, f"does not fit this model: {problem}; {advice}")
