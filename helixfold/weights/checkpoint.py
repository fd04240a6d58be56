"""Parameter files in helixfold's format: safetensors with the model's settings and a checksum.

`FORMAT_VERSION` is the version of the format in the metadata of a file.
"""

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.json_files import parse_json
from helixfold.weights.adapters import read_card
from helixfold.weights.tensor_file import damaged, open_tensors, read_tensors, write_tensors

_FORMAT, FORMAT_VERSION = "helixfold", "1"


@dataclass(frozen=True, kw_only=True)
class Header:
    """Metadata of a parameter file: the model's settings (`ModelConfig.to_dict()`) and the shapes of its tensors.

    `sha256` is the digest of the tensors, and not of the file. `use` has the other settings of the preset if it is not
    a named one, else None. `descends_from` is the name of the packaged model if training started from its parameters,
    else None. `began_with` describes which parameters training took from which file, and which were new; None if all
    were random.
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
    """Write a model's state dict with its settings and the other metadata of a `Header`, atomically.

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
    """Read the state dict and settings from a file of `save_checkpoint`. Raise `InputError` if it is damaged."""
    path = Path(path)
    with _opened(path) as file:
        config = _header(path, file).config
        return read_tensors(path, file), config


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read the metadata of a file of `save_checkpoint` without its parameters. Raise `InputError` for other files."""
    path = Path(path)
    with _opened(path) as file:
        return _header(path, file)


def _opened(path: Path) -> AbstractContextManager[safe_open]:
    problem = "was not written by helixfold: it lacks the settings of its model"
    if (card := read_card(path)) is not None:
        problem = f"is an adapter of {printable(card.base_name)}; pass it with --adapter"
    return open_tensors(path, _FORMAT, FORMAT_VERSION, problem)


def _header(path: Path, file: safe_open) -> Header:
    """Return the metadata and the parameters' shapes of an open checkpoint."""
    metadata = file.metadata() or {}
    try:
        config, use = parse_json(metadata.get("config", "")), parse_json(metadata.get("use", "null"))
    except ValueError as error:
        raise damaged(path, error) from error
    if not isinstance(config, dict) or not isinstance(use, dict | None):
        raise InputError.at(path, "its settings are not a JSON object")
    return Header(
        config=config,
        use=use,
        shapes={name: tuple(file.get_slice(name).get_shape()) for name in file.keys()},  # noqa: SIM118
        sha256=metadata.get("sha256", ""),
        descends_from=metadata.get("descends_from"),
        began_with=metadata.get("began_with"),
    )
