"""Files of one checkpoint: written completely or not at all, and verified before they are used.

A checkpoint is a directory `step_00001000/` of safetensors files, written by `torch.distributed.checkpoint`'s Hugging
Face storage (the default storage writes its table as a pickle), and `manifest.json`: size and SHA-256 of each
file, shapes and dtypes, and the caller's record. An incomplete directory, and one being deleted, has a hidden name, so
a single rename creates or removes a checkpoint.
"""

import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner, HuggingFaceStorageWriter

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import flush_to_disk, read_file, sha256_of
from data_pipeline.io.json_files import MAX_JSON_BYTES, parse_json
from helixfold.weights.tensor_file import sort_metadata

MANIFEST = "manifest.json"  # name of a file in the directory of a checkpoint
FORMAT_VERSION = 1
# Maximum bytes of a tensor, or of its pieces, in one file. Serialising a file blocks all other threads, so files are
# short, and training continues between them.
PIECE_BYTES = 1 << 23

# Names of checkpoints; of an unfinished mark of the best one; and of incomplete, replaced and deleted checkpoints.
_CHECKPOINT_NAME = re.compile(r"step_(\d{8,})")
_UNFINISHED_MARK = re.compile(r"\.best\.json\.[0-9a-f]{8}\.partial")
_HIDDEN_NAME = re.compile(r"\.(step_\d{8,})\.[0-9a-f]{8}\.(partial|replaced|deleted)")


class DamagedError(Exception):
    """A checkpoint is damaged; the message describes how."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Content of a checkpoint's `manifest.json`.

    `shapes` and `dtypes` are by the name of the tensor, `files` (bytes and SHA-256) by the name of the file. `record`
    is the record that the caller passed to `write_checkpoint`.
    """

    step: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    files: dict[str, tuple[int, str]]
    record: dict[str, Any]


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step; `directory` has all checkpoints of a run."""
    return directory / f"step_{step:08d}"


def checkpoint_steps(directory: Path) -> list[int]:
    """Return the steps that have a checkpoint, intact or damaged, in ascending order."""
    if not directory.is_dir():
        return []
    return sorted(int(match[1]) for path in directory.iterdir() if (match := _CHECKPOINT_NAME.fullmatch(path.name)))


def write_checkpoint(directory: Path, step: int, tensors: Mapping[str, Tensor], record: str) -> None:
    """Write CPU tensors and a record (JSON text) as the checkpoint of a step, replacing an earlier one.

    Raise `OSError` if that fails; an earlier checkpoint of the step is then unchanged.
    """
    final = checkpoint_path(directory, step)
    partial = _hidden(final, "partial")
    try:
        partial.mkdir()
        _write_tensors(partial, tensors)
        body = {
            "step": step,
            "tensors": {
                name: {"shape": list(tensor.shape), "dtype": _dtype_name(tensor)} for name, tensor in tensors.items()
            },
            "files": {
                path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
                for path in sorted(partial.iterdir())
            },
            "record": json.loads(record),
        }
        manifest = {"format": FORMAT_VERSION, "sha256": _manifest_sha256(body), "checkpoint": body}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False))
        for path in [*partial.iterdir(), partial]:
            flush_to_disk(path)
        if final.exists():
            replaced = _hidden(final, "replaced")
            final.rename(replaced)  # `remove_leftovers` undoes this if the process ends before the next line.
            partial.rename(final)
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            partial.rename(final)
        flush_to_disk(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_manifest(directory: Path, step: int) -> Manifest:
    """Read a checkpoint's manifest and verify all its files.

    Raise `DamagedError` if a file is missing or its checksum differs.
    """
    path, manifest = checkpoint_path(directory, step), read_manifest_only(directory, step)
    try:
        for name, (size, sha256) in manifest.files.items():
            if not (path / name).is_file():
                raise DamagedError(f"{printable(name)} is missing")
            if (actual := (path / name).stat().st_size) != size:
                raise DamagedError(f"{printable(name)} has {actual} bytes instead of {size}")
            if sha256_of(path / name) != sha256:
                raise DamagedError(f"{printable(name)} has changed since it was written (checksum)")
    except InputError as error:
        raise DamagedError(str(error)) from error
    except OSError as error:
        raise DamagedError(f"it cannot be read: {error.strerror or error}") from error
    return manifest


def read_manifest_only(directory: Path, step: int) -> Manifest:
    """Read a checkpoint's manifest without verifying the files it lists.

    Raise `DamagedError` if the manifest is missing or damaged.
    """
    path = checkpoint_path(directory, step)
    if not path.is_dir():
        raise DamagedError("it is not a directory")
    if not os.path.lexists(path / MANIFEST):
        raise DamagedError(f"it has no {MANIFEST}")
    try:
        manifest = _parse(read_file(path / MANIFEST, MAX_JSON_BYTES))
    except InputError as error:
        raise DamagedError(str(error)) from error
    except OSError as error:
        raise DamagedError(f"it cannot be read: {error.strerror or error}") from error
    if manifest.step != step:
        raise DamagedError(f"its manifest is for step {manifest.step}")
    return manifest


def read_tensors(directory: Path, manifest: Manifest, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors in place from an intact checkpoint, which must hold the same names, shapes and dtypes.

    `manifest` is the manifest of the checkpoint in `directory`. Raise `DamagedError` if its files cannot be read.
    """
    # A tensor that is not contiguous has no flat view, so its values are read into a copy.
    flat = {name: tensor.detach().reshape(-1) for name, tensor in tensors.items()}
    pieces = dict(_pieces(flat))
    try:
        for file in (name for name in manifest.files if name.endswith(".safetensors")):
            for name, values in load_file(checkpoint_path(directory, manifest.step) / file).items():
                pieces[name].copy_(values)
    except (SafetensorError, OSError) as error:
        raise DamagedError(f"its tensors cannot be read: {printable(str(error))}") from error
    with torch.no_grad():
        for name, tensor in tensors.items():
            if not tensor.is_contiguous():
                tensor.copy_(flat[name].view(tensor.shape))


def remove_checkpoint(directory: Path, step: int) -> None:
    """Delete a checkpoint. It is renamed first, so that a killed process leaves no half-deleted checkpoint."""
    path = checkpoint_path(directory, step)
    hidden = _hidden(path, "deleted")
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def set_aside(directory: Path, step: int) -> Path:
    """Rename a damaged checkpoint, which stays on disk but is not read again. Return its new path."""
    path = checkpoint_path(directory, step)
    return path.rename(path.with_name(f"damaged_{path.name}_{secrets.token_hex(4)}"))


def remove_leftovers(directory: Path) -> None:
    """Clean up after a killed run: delete unfinished and half-deleted files, and undo an unfinished replacement.

    A checkpoint that was being replaced gets its name back.
    """
    for path in sorted(directory.iterdir()):
        if match := _HIDDEN_NAME.fullmatch(path.name):
            if match[2] == "replaced" and not (directory / match[1]).exists():
                path.rename(directory / match[1])
            else:
                shutil.rmtree(path, ignore_errors=True)
        elif _UNFINISHED_MARK.fullmatch(path.name):
            path.unlink()


def mismatch(manifest: Manifest, tensors: Mapping[str, Tensor]) -> str | None:
    """Return how a checkpoint differs from the tensors that it should fill; None if they agree."""
    for name, tensor in tensors.items():
        if name not in manifest.shapes:
            return f"has no '{name}'"
        if manifest.shapes[name] != tuple(tensor.shape):
            return f"has '{name}' of shape {manifest.shapes[name]}, but this run has {tuple(tensor.shape)}"
        if manifest.dtypes[name] != _dtype_name(tensor):
            return f"has '{name}' in {manifest.dtypes[name]}, but this run has {_dtype_name(tensor)}"
    surplus = next((name for name in manifest.shapes if name not in tensors), None)
    return None if surplus is None else f"has '{printable(surplus)}', which this run does not have"


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors into safetensors files in the directory `path`, in pieces."""
    state: dict[str, Any] = dict(_pieces({name: tensor.reshape(-1) for name, tensor in tensors.items()}))
    starts = itertools.accumulate((piece.nbytes for piece in state.values()), initial=0)
    file_of = {key: 1 + start // PIECE_BYTES for key, start in zip(state, starts, strict=False)}
    # These lines do what `torch.distributed.checkpoint.save` does for one process. That function warns without a
    # process group or with `no_dist`, otherwise joins collectives, and hides a full disk in its own exception.
    writer = HuggingFaceStorageWriter(str(path), fqn_to_index_mapping=file_of)
    writer.per_thread_copy_ahead = 0  # Nothing is on a GPU here, and looking for one would allocate memory on it.
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(is_coordinator=True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([plan])
    (plan,) = writer.prepare_global_plan(plans)
    written = writer.write_data(planner.finish_plan(plan), planner)
    written.wait()
    writer.finish(metadata, [written.value()])
    for file in path.glob("*.safetensors"):
        sort_metadata(file)


def _pieces(flat: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield names and consecutive views, of at most `PIECE_BYTES`, of each flat tensor."""
    for name, tensor in flat.items():
        length = PIECE_BYTES // tensor.element_size()
        for start in range(0, tensor.numel(), length):
            piece = tensor[start : start + length]
            yield f"{name}[{start}:{start + len(piece)}]", piece


def _parse(content: bytes) -> Manifest:
    """Return the manifest in the content of a file; raise `DamagedError` if it is damaged or of another format."""
    try:
        content_json = parse_json(content)
        body = content_json["checkpoint"]
        if content_json["format"] != FORMAT_VERSION:
            raise DamagedError(
                f"{MANIFEST} has format {printable(str(content_json['format']))}; expected {FORMAT_VERSION}"
            )
        if content_json["sha256"] != _manifest_sha256(body):
            raise DamagedError(f"{MANIFEST} has changed since it was written (checksum)")
        if any(Path(name).name != name for name in body["files"]):
            raise DamagedError(f"{MANIFEST} lists files outside the checkpoint")
        return Manifest(
            step=int(body["step"]),
            shapes={name: tuple(entry["shape"]) for name, entry in body["tensors"].items()},
            dtypes={name: entry["dtype"] for name, entry in body["tensors"].items()},
            files={name: (entry["bytes"], entry["sha256"]) for name, entry in body["files"].items()},
            record=body["record"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{MANIFEST} was not written by helixfold") from error


def _manifest_sha256(body: Any) -> str:
    """Return the SHA-256 of the body of a manifest, which is written with it."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _dtype_name(tensor: Tensor) -> str:
    """Return the name of a tensor's dtype, such as "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def _hidden(path: Path, state: str) -> Path:
    """Return a hidden path next to a checkpoint, with a random part: "partial", "replaced" or "deleted"."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{state}")
