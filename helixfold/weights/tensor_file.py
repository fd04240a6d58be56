"""Safetensors files of parameters: written atomically with a checksum that is compared on reading.

`MAX_HEADER_BYTES` limits the header of a file.
"""

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

# The library needs many times this memory to parse a header, and aborts the process if memory is too small.
MAX_HEADER_BYTES = 2**24


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors with their checksum and other metadata, atomically. Equal arguments give equal bytes."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as temporary:
        save_file(on_cpu, temporary, metadata={**metadata, "sha256": digest_of(on_cpu)})
        sort_metadata(temporary)


@contextmanager
def open_tensors(path: Path, form: str, version: str, problem: str) -> Iterator[safe_open]:
    """Open a safetensors file whose metadata has the format name `form` and this `version`.

    The checksum is not compared; see `read_tensors`. Raise `InputError` if the file is missing, has another format
    (with the message `problem`) or version, or is damaged.
    """
    with _open(path) as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != form:
            raise InputError.at(path, problem)
        if (actual := metadata.get("version")) != version:
            actual = printable("none" if actual is None else actual)
            problem = f"has format version {actual}, and this helixfold reads {version}"
            raise InputError.at(path, f"{problem}; update helixfold")
        yield file


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of any safetensors file. Raise `InputError` if it is missing or damaged."""
    with _open(path) as file:
        return file.metadata() or {}


@contextmanager
def _open(path: Path) -> Iterator[safe_open]:
    require_file(path)
    try:
        with path.open("rb") as start:
            length = int.from_bytes(start.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise InputError.at(path, f"has a header of {length:,} bytes; expected at most {MAX_HEADER_BYTES:,}")
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from error


def read_tensors(path: Path, file: safe_open) -> dict[str, Tensor]:
    """Read all tensors of a file of `write_tensors`. Raise `InputError` if they do not have the stored checksum."""
    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if digest_of(tensors) != (file.metadata() or {}).get("sha256"):
        raise InputError.at(path, "its tensors do not have the stored checksum; download or copy the file again")
    return tensors


def damaged(path: Path, error: Exception) -> InputError:
    """Return an `InputError` for a damaged file, with the message of `error`."""
    problem = f"is not a complete safetensors file ({printable(str(error))})"
    return InputError.at(path, f"{problem}; download or create it again")


def sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file in place, because the library writes them in a varying order."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        file.seek(8)
        file.write(text.ljust(length))


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names, dtypes, shapes and values of tensors, in hexadecimal, whatever their order.

    They must be in CPU memory.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
