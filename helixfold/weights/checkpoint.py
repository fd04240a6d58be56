"""Parameter files in our own format: safetensors with the model's settings and a checksum."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from data_pipeline.errors import InputError, printable
from data_pipeline.files import atomic_write, require_file
from data_pipeline.json_files import parse_json

FORMAT_VERSION = "1"
# The library needs many times this memory to parse a header, and aborts the process if it cannot get it.
MAX_HEADER_BYTES = 2**24


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
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    metadata = {
        "format": "helixfold",
        "version": FORMAT_VERSION,
        "config": json.dumps(config, allow_nan=False),
        "use": json.dumps(use, allow_nan=False),
        "sha256": digest_of(tensors),
    }
    for name, value in (("descends_from", descends_from), ("began_with", began_with)):
        if value is not None:
            metadata[name] = value
    with atomic_write(Path(path)) as temporary:
        save_file(tensors, temporary, metadata=metadata)
        sort_metadata(temporary)


def sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file, which the library writes in an order that differs between processes."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        file.seek(8)
        file.write(text.ljust(length))


def load_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the state dict and settings from a file of `save_checkpoint`. Raise `InputError` if any bit has changed."""
    path = Path(path)
    header = read_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in header.shapes}
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error
    if digest_of(tensors) != header.sha256:
        raise InputError.at(path, "its numbers do not have the checksum that it was written with; fetch it again")
    return tensors, header.config


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read a file's metadata, but none of its parameters."""
    path = Path(path)
    require_file(path)
    try:
        with path.open("rb") as start:
            length = int.from_bytes(start.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise InputError.at(path, f"claims a header of {length:,} bytes, which no model's parameters need")
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error
    if metadata.get("format") != "helixfold":
        raise InputError.at(path, "does not say which model it is for, so helixfold did not write it")
    if metadata.get("version") != FORMAT_VERSION:
        version = printable(metadata.get("version", "none"))
        raise InputError.at(path, f"has format version {version}, this helixfold reads {FORMAT_VERSION}; update it")
    try:
        config, use = parse_json(metadata.get("config", "")), parse_json(metadata.get("use", "null"))
    except ValueError as error:
        raise _damaged(path, error) from error
    if not isinstance(config, dict) or not isinstance(use, dict | None):
        raise InputError.at(path, "its settings are not a table of names and values")
    return Header(
        config=config,
        use=use,
        shapes=shapes,
        sha256=metadata.get("sha256", ""),
        descends_from=metadata.get("descends_from"),
        began_with=metadata.get("began_with"),
    )


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and values of tensors in CPU memory."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError.at(path, f"is no complete safetensors file ({printable(str(error))}); fetch or make it again")
