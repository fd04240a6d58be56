"""Loading of parameters from DeepMind's, OpenFold's and our own files."""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data_pipeline.errors import InputError, printable
from data_pipeline.files import require_file
from data_pipeline.zip_archive import damage_as_input_error
from helixfold.config import ConfigError, ModelConfig
from helixfold.weights import alphafold, openfold
from helixfold.weights.checkpoint import load_checkpoint, read_header
from helixfold.weights.conversion import Shapes, shapes_of
from helixfold.weights.npz import NpzArrays
from helixfold.weights.openfold import read_pt
from helixfold.weights.shapes import Format, require_shapes

_SUFFIXES: dict[str, Format] = {
    ".npz": "npz",
    ".pt": "pt",
    ".pth": "pt",
    ".ckpt": "pt",
    ".safetensors": "safetensors",
}
# Settings that affect a model's training or input, and not the meaning of its parameters.
_FREE_SETTINGS = ("dropout", "msa_dropout", "pair_dropout", "max_templates")


def load_weights(path: str | os.PathLike[str], config: ModelConfig) -> dict[str, Tensor]:
    """Return the state dict, in float32, of a model with these settings.

    Raise `InputError` if the file is damaged or is for another model, which the error names.
    """
    path = Path(path)
    form = file_format(path)
    if form == "npz":
        with NpzArrays(path) as arrays:
            require_shapes(path, arrays.shapes, config, form)
            return alphafold.to_state_dict(arrays, config)
    if form == "pt":
        tensors = read_pt(path)
        require_shapes(path, shapes_of(tensors), config, form)
        state = openfold.to_state_dict(tensors, config)
    else:
        header = read_header(path)
        require_shapes(path, header.shapes, config, form)
        _require_settings(path, header.config, config)
        state, _ = load_checkpoint(path)
    state = {name: tensor.float() for name, tensor in state.items()}
    for name, tensor in state.items():
        if not torch.isfinite(tensor).all():
            raise InputError.at(path, f"parameter '{printable(name)}' has values that are not finite float32 numbers")
    return state


def read_shapes(path: str | os.PathLike[str]) -> tuple[Format, Shapes]:
    """Return a file's format, and the names and shapes of its arrays (OpenFold's current names)."""
    path = Path(path)
    form = file_format(path)
    if form == "npz":
        with NpzArrays(path) as arrays:
            return form, arrays.shapes
    return form, shapes_of(read_pt(path)) if form == "pt" else read_header(path).shapes


def file_format(path: Path) -> Format:
    """Return the format of a parameter file, by its suffix or else by its content."""
    require_file(path)
    known = _SUFFIXES.get(path.suffix.lower())
    if known is not None:
        return known
    with damage_as_input_error(path), path.open("rb") as file:
        start = file.read(9)
        if start[8:] == b"{":
            return "safetensors"
        if start[:4] == b"PK\x03\x04":
            with zipfile.ZipFile(file) as archive:
                return "npz" if all(name.endswith(".npy") for name in archive.namelist()) else "pt"
    raise InputError.at(path, f"is no parameter file; these are read: {', '.join(_SUFFIXES)}")


def _require_settings(path: Path, stored: Mapping[str, Any], config: ModelConfig) -> None:
    """Raise `InputError` if settings differ, since models of equal shapes may differ in heads or block order."""
    try:
        theirs = ModelConfig.from_dict(stored).flat()
    except ConfigError as error:
        raise InputError.at(path, f"its settings are not those of a model: {printable(str(error))}") from error
    ours = config.flat()
    changed = [
        f"{name} is {theirs.get(name)!r} there and {ours.get(name)!r} here"
        for name in sorted(theirs.keys() | ours.keys())
        if theirs.get(name) != ours.get(name) and name.rsplit(".", 1)[-1] not in _FREE_SETTINGS
    ]
    if changed:
        raise InputError.at(path, f"was written by another model: {'; '.join(changed)}")
