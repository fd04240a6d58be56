"""Parameters in a file of any format."""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from helixfold.model.config import ModelConfig
from helixfold.model.presets import tiny
from helixfold.weights import alphafold, openfold
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.npz import write_npz
from helixfold.weights.openfold import write_pt
from helixfold.weights.untrained import untrained_model


def write_parameters(path: Path, state: dict[str, Tensor], config: ModelConfig) -> Path:
    """The path, to which the parameters are written in the format of its suffix."""
    if path.suffix == ".npz":
        write_npz(path, alphafold.from_state_dict(state, config))
    elif path.suffix == ".pt":
        write_pt(path, openfold.from_state_dict(state, config))
    else:
        save_checkpoint(path, state, config.to_dict())
    return path


def write_tiny_without_templates(path: Path) -> Path:
    """Write the parameters of a tiny network that reads no templates, and return their path."""
    model = replace(tiny().model, template=None)
    save_checkpoint(path, untrained_model(model, 0).state_dict(), model.to_dict(), tiny().without_model())
    return path
