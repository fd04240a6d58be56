"""Load parameters from files in DeepMind's (npz), OpenFold's (pt) and helixfold's (safetensors) formats.

A `Format` is one of these three.
"""

import os
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import require_file
from data_pipeline.io.zip_archive import damage_as_input_error
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import ConfigError, ModelConfig, of_blocks
from helixfold.model.presets import PRESETS
from helixfold.runtime.standard_streams import print_detail
from helixfold.weights import alphafold, openfold
from helixfold.weights.checkpoint import load_checkpoint, read_header
from helixfold.weights.conversion import ParameterMapping, Shapes, differences, shapes_of, their_shapes
from helixfold.weights.npz import open_npz
from helixfold.weights.openfold import read_pt

Format = Literal["npz", "pt", "safetensors"]
_FORMAT_OF_SUFFIX: dict[str, Format] = {
    ".npz": "npz",
    ".pt": "pt",
    ".pth": "pt",
    ".ckpt": "pt",
    ".safetensors": "safetensors",
}
# Settings that affect the training or input of a model, but not the meaning of its parameters.
_FREE_SETTINGS = ("dropout", "msa_dropout", "pair_dropout", "max_templates")
_MAPPINGS_OF_FORMAT: dict[Format, Callable[[ModelConfig], tuple[ParameterMapping, ...]]] = {
    "npz": alphafold.rows,
    "pt": openfold.rows,
}


def load_weights(path: str | os.PathLike[str], config: ModelConfig, shapes: Shapes | None = None) -> dict[str, Tensor]:
    """Return the float32 state dict of a model from a parameter file.

    A caller that has the model may pass the `shapes` of its state dict, because computing them takes a while.

    Raise `InputError` if the file is damaged or is for another model; the message names the presets that it fits.
    """
    path = Path(path)
    form = file_format(path)
    print_detail(f"parameters from {path.absolute()}")
    if form == "npz":
        with open_npz(path) as arrays:
            require_shapes(path, arrays.shapes, config, form, shapes)
            return alphafold.to_state_dict(arrays, config)
    if form == "pt":
        tensors = read_pt(path)
        require_shapes(path, shapes_of(tensors), config, form, shapes)
        state = openfold.to_state_dict(tensors, config)
    else:
        header = read_header(path)
        require_shapes(path, header.shapes, config, form, shapes)
        if changed := differing_settings(path, header.config, config):
            raise InputError.at(path, f"is for another model: {'; '.join(changed)}")
        state, _ = load_checkpoint(path)
    state = {name: tensor.float() for name, tensor in state.items()}
    for name, tensor in state.items():
        if not torch.isfinite(tensor).all():
            raise InputError.at(path, f"parameter '{printable(name)}' has values that are not finite float32 numbers")
    return state


def read_shapes(path: str | os.PathLike[str]) -> tuple[Format, Shapes]:
    """Return the format of a file, and the shapes of its arrays by name (for OpenFold, its current names)."""
    path = Path(path)
    form = file_format(path)
    if form == "npz":
        with open_npz(path) as arrays:
            return form, arrays.shapes
    return form, shapes_of(read_pt(path)) if form == "pt" else read_header(path).shapes


def file_format(path: Path) -> Format:
    """Return the format of a parameter file, from its suffix, or from its content if the suffix is unknown.

    Raise `InputError` if it is not a parameter file.
    """
    require_file(path)
    form = _FORMAT_OF_SUFFIX.get(path.suffix.lower())
    if form is not None:
        return form
    with damage_as_input_error(path), path.open("rb") as file:
        start = file.read(9)
        if start[8:] == b"{":
            return "safetensors"
        if start[:4] == b"PK\x03\x04":
            with zipfile.ZipFile(file) as archive:
                return "npz" if all(name.endswith(".npy") for name in archive.namelist()) else "pt"
    raise InputError.at(path, f"is not a parameter file; expected one of {', '.join(_FORMAT_OF_SUFFIX)}")


@cache
def model_shapes(config: ModelConfig) -> Shapes:
    """Return the shapes of a model's state dict by name, without allocating its parameters."""
    with torch.device("meta"):
        return shapes_of(AlphaFold(config).state_dict())


@cache
def file_shapes(config: ModelConfig, form: Format) -> Shapes:
    """Return the shapes of a model's parameters in a file format, by the names that they have in such files."""
    return _in_file(model_shapes(config), config, form)


@cache
def _preset_shapes(config: ModelConfig, form: Format) -> Shapes:
    """Return `file_shapes` of a preset's model in a tenth of the time, by building one block of each stack."""
    blocks = {"evoformer": config.evoformer.blocks, "extra_msa_stack": config.extra_msa.blocks}
    if config.template is not None:
        blocks["template_embedder.pair"] = config.template.blocks
    all_shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in model_shapes(of_blocks(config, 1)).items():
        stack, _, rest = name.partition(".blocks.0.")
        names = [f"{stack}.blocks.{index}.{rest}" for index in range(blocks[stack])] if stack in blocks else [name]
        all_shapes |= dict.fromkeys(names, shape)
    return _in_file(all_shapes, config, form)


def _in_file(shapes: Shapes, config: ModelConfig, form: Format) -> Shapes:
    """Return the shapes that the network's parameters have in a file of this format."""
    return their_shapes(_MAPPINGS_OF_FORMAT[form](config), shapes) if form in _MAPPINGS_OF_FORMAT else shapes


def matching_presets(shapes: Shapes, form: Format) -> tuple[str, ...]:
    """Return the names of the presets whose models have exactly these names and shapes of arrays in a file format."""
    return tuple(name for name, preset in PRESETS.items() if _preset_shapes(preset().model, form) == shapes)


def require_shapes(
    path: Path, shapes: Shapes, config: ModelConfig, form: Format, model_state: Shapes | None = None
) -> None:
    """Raise `InputError` with the differences and the matching presets if names or shapes differ from the model's.

    `shapes` are of the arrays in the file `path`, and `config` are the settings of the model. `model_state` has the
    shapes of the model's state dict if the caller has them.
    """
    expected = file_shapes(config, form) if model_state is None else _in_file(model_state, config, form)
    problem = differences(expected, shapes)
    if not problem:
        return
    presets = matching_presets(shapes, form)
    if presets:
        advice = (
            f"it fits {', '.join(presets)}: choose {'this preset' if len(presets) == 1 else 'one of these presets'}"
        )
    else:
        advice = "it does not fit any preset"
    raise InputError.at(path, f"does not fit this model: {problem}; {advice}")


def differing_settings(path: Path, stored: Mapping[str, Any], config: ModelConfig) -> list[str]:
    """Describe how the settings of a file differ: models of equal shapes may differ in heads or block order.

    Raise `InputError` if the stored settings do not describe a model.
    """
    try:
        theirs = ModelConfig.from_dict(stored).flat()
    except ConfigError as error:
        raise InputError.at(path, f"its settings do not describe a model: {printable(str(error))}") from error
    ours = config.flat()
    return [
        f"{name} is {theirs.get(name)!r} there and {ours.get(name)!r} here"
        for name in sorted(theirs.keys() | ours.keys())
        if theirs.get(name) != ours.get(name) and name.rsplit(".", 1)[-1] not in _FREE_SETTINGS
    ]
