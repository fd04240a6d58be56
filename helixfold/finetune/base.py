"""The model that fine-tuning begins with: its preset, and its parameters on a device."""

from pathlib import Path

import torch

from data_pipeline.errors import InputError
from helixfold.finetune.adapted import FrozenParameters
from helixfold.presets import Preset
from helixfold.weights.find import find_parameters
from helixfold.weights.load import load_weights


def base_file(model: str | None, weights: Path | None) -> tuple[Preset, Path]:
    """Return the preset and the parameter file that `helixfold predict` would take for these options.

    Raise `InputError` if they name no parameters, or several models.
    """
    found = find_parameters([] if model is None else [model], weights)
    if len(found) > 1:
        names = ", ".join(preset.name for preset, _ in found)
        raise InputError(f"{weights} has several models ({names}); choose one with --model")
    ((preset, path),) = found
    if path is None:
        raise InputError(f"the model '{preset.name}' has random parameters; name trained ones with --weights")
    return preset, path


def load_base(preset: Preset, path: Path, device: torch.device) -> FrozenParameters:
    """Read the parameters of a model. Raise `InputError` if the file is damaged or of another model."""
    return FrozenParameters.of(load_weights(path, preset.model), preset.model, path.name, device)
