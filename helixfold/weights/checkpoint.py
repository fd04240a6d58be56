"""Parameter files in our own format: safetensors with the model's settings and a checksum."""

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from data_pipeline.io.errors import InputError
from data_pipeline.io.json_files import parse_json
from helixfold.weights.tensor_file import damaged, open_tensors, read_tensors, write_tensors

_FORMAT, FORMAT_VERSION = "helixfold", "1"


@dataclass(frozen=True, kw_only=True)
class Header:
    """Metadata of a file: the model's settings (`ModelConfig.to_dict()`) and the shapes of its tensors.

    `use` has the other settings of the model's preset, if it is not one of the named presets; None if not given.
    `descends_from` names the packaged model whose parameters the training of these began with; None for any other.
    `began_with` says which parameters of which file it began with, and which were new; None if all were random.
    """

    config: dict[str, Any]
    use: dict[str, Any] | None
    shapes: dict[str, tuple[int, ...]]
    sha256: str
    descends_from: str | None
    began_with: str | None = None


def save_checkpoint(
    path: str | os.PathLike[str],
    state: Mapping[str, Tensor],
    config: Mapping[str, Any],
    use: Mapping[str, Any] | None = None,
    *,
    descends_from: str | None = None,
    began_with: str | None = None,
) -> None:
    """Write a model's state dict, its settings and the other facts of its `Header` as one atomic file.

    Equal arguments give equal bytes.
    """
    metadata = {
        "format": _FORMAT,
        "version": FORMAT_VERSION,
        "config": json.dumps(config, allow_nan=False),
        "use": json.dumps(use, allow_nan=False),
    }
    for name, value in (("descends_from", descends_from), ("began_with", began_with)):
        if value is not None:
            metadata[name] = value
    write_tensors(Path(path), state, metadata)


def load_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the state dict and settings from a file of `save_checkpoint`. Raise `InputError` if any bit has changed."""
    path = Path(path)
    with _opened(path) as file:
        config = _header(path, file).config
        return read_tensors(path, file), config


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read a file's metadata, but none of its parameters."""
    path = Path(path)
    with _opened(path) as file:
        return _header(path, file)


def _opened(path: Path) -> AbstractContextManager[safe_open]:
    otherwise = "does not say which model it is for, so helixfold did not write it"
    return open_tensors(path, _FORMAT, FORMAT_VERSION, otherwise)


def _header(path: Path, file: safe_open) -> Header:
    metadata = file.metadata() or {}
    try:
        config, use = parse_json(metadata.get("config", "")), parse_json(metadata.get("use", "null"))
    except ValueError as error:
        raise damaged(path, error) from error
    if not isinstance(config, dict) or not isinstance(use, dict | None):
        raise InputError.at(path, "its settings are not a table of names and values")
    return Header(
        config=config,
        use=use,
        shapes={name: tuple(file.get_slice(name).get_shape()) for name in file.keys()},  # noqa: SIM118
        sha256=metadata.get("sha256", ""),
        descends_from=metadata.get("descends_from"),
        began_with=metadata.get("began_with"),
    )
