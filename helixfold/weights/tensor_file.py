"""Safetensors files of parameters: written atomically with a checksum, and read with every mistake found."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import atomic_write, require_file

# The library needs many times this memory to parse a header, and aborts the process if it cannot get it.
MAX_HEADER_BYTES = 2**24


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors, their checksum and other metadata as one atomic file. Equal arguments give equal bytes."""
    own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as temporary:
        save_file(own, temporary, metadata={**metadata, "sha256": digest_of(own)})
        sort_metadata(temporary)


@contextmanager
def open_tensors(path: Path, form: str, version: str, otherwise: str) -> Iterator[safe_open]:
    """Open a safetensors file of a format in a version.

    Raise `InputError` if it is missing or of another format, of which `otherwise` tells the reader, or if it is of
    another version, or damaged as far as it is read.
    """
    require_file(path)
    try:
        with path.open("rb") as start:
            length = int.from_bytes(start.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise InputError.at(path, f"claims a header of {length:,} bytes, which no parameters need")
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != form:
                raise InputError.at(path, otherwise)
            if (found := metadata.get("version")) != version:
                found = printable("none" if found is None else found)
                raise InputError.at(path, f"has format version {found}, this helixfold reads {version}; update it")
            yield file
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from error


def read_tensors(path: Path, file: safe_open) -> dict[str, Tensor]:
    """Read all tensors of an open file of `write_tensors`. Raise `InputError` if any bit of one has changed."""
    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if digest_of(tensors) != (file.metadata() or {}).get("sha256"):
        raise InputError.at(path, "its numbers do not have the checksum that it was written with; fetch it again")
    return tensors


def damaged(path: Path, error: Exception) -> InputError:
    """Return the error for a file that is damaged, as another error says."""
    return InputError.at(path, f"is no complete safetensors file ({printable(str(error))}); fetch or make it again")


def sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file, which the library writes in an order that differs between processes."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        file.seek(8)
        file.write(text.ljust(length))


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and values of tensors in CPU memory."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
