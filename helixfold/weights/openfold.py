"""Conversion between our state dict and OpenFold's checkpoints (`.pt`).

`LIMITS` are limits of a checkpoint's archive, and `MAX_NAMES_BYTES` limits its pickled names.
"""

import os
import pickle
import re
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import atomic_write
from data_pipeline.io.zip_archive import ArchiveLimits, open_archive
from helixfold.model.config import ModelConfig
from helixfold.weights.conversion import IDENTITY, ParameterMapping, to_ours, to_theirs
from helixfold.weights.table import table

# A training checkpoint has a member for each tensor of model, moving average and optimizer. torch.save never
# compresses.
LIMITS = ArchiveLimits(members=100_000, unpacked_bytes=32 * 2**30, compressed=False)
# Maximum bytes of pickled names, which are slow to read; a training checkpoint has two million.
MAX_NAMES_BYTES = 2**23
# Prefixes that DeepSpeed's and Lightning's wrappers add.
_WRAPPER_PREFIXES = re.compile(r"^(?:module\.|model\.)+")
# Names of modules in OpenFold 1 and their current names.
_OLD_NAMES = (
    (re.compile(r"^template_angle_embedder\."), "template_embedder.template_single_embedder."),
    (re.compile(r"^(template_pair_embedder|template_pair_stack|template_pointwise_att)\."), r"template_embedder.\1."),
    (re.compile(r"\.core\.(msa_transition|outer_product_mean)\."), r".\1."),
    (re.compile(r"\.core\.(tri_\w+|pair_transition)\."), r".pair_stack.\1."),
    # Names in AlphaLink's version.
    (re.compile(r"^extra_msa_stack\.stack\."), "extra_msa_stack."),
    (
        re.compile(r"^((?:extra_msa_stack|evoformer)\.blocks\.\d+)\.(tri_\w+|pair_transition)\."),
        r"\1.pair_stack.\2.",
    ),
    (re.compile(r"\.ipa\.(linear_q_points|linear_kv_points)\.(weight|bias)$"), r".ipa.\1.linear.\2"),
)
_RESTRAINT_WEIGHT = "xl_embedder.linear.weight"  # only AlphaLink has it
# Errors that torch.load raises on damaged or hostile files.
_DAMAGE_ERRORS = (
    pickle.UnpicklingError,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    OSError,
    AssertionError,
    OverflowError,
    MemoryError,
    struct.error,
)


def rows(config: ModelConfig) -> tuple[ParameterMapping, ...]:
    """Return the mappings between our state dict and OpenFold's for a model with these settings."""
    return tuple(
        ParameterMapping(
            ours=tuple(
                name.replace("*", str(block))
                for name in (reversed(parameter.ours) if parameter.reversed_in_openfold else parameter.ours)
            ),
            theirs=tuple(name.replace("*", str(block)) for name in parameter.openfold),
            axes=IDENTITY,
            stacked=False,
            parts=len(parameter.ours),
        )
        for parameter in table(config)
        for block in range(parameter.blocks or 1)
    )


def to_state_dict(tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Convert OpenFold's state dict to ours. Raise `InputError` if names are missing or unknown."""
    return to_ours(rows(config), tensors)


def from_state_dict(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Convert our state dict to OpenFold's, the exact inverse of `to_state_dict`. Raise `InputError` as there."""
    return to_theirs(rows(config), {name: tensor.detach().cpu() for name, tensor in state.items()})


def read_pt(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read the model's tensors from an OpenFold checkpoint, memory-mapped and under current names.

    The moving average is preferred, as in OpenFold, and prefixes of wrappers are removed. Template modules of
    AlphaLink's checkpoints are left out. Raise `InputError` if the file is damaged or has anything except
    floating-point tensors.
    """
    path = Path(path)
    with open_archive(path, LIMITS) as archive:
        names = max((member.file_size for member in archive.infolist() if member.filename.endswith(".pkl")), default=0)
    if names > MAX_NAMES_BYTES:
        raise InputError.at(path, f"has {names:,} bytes of names; expected at most {MAX_NAMES_BYTES:,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below describes the problem
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except _DAMAGE_ERRORS as error:
        reason = printable(str(error).split("\n", 1)[0])
        raise InputError.at(
            path, f"is not a checkpoint of tensors only ({reason}); save only the model's state dict"
        ) from error
    tensors: dict[str, Tensor] = {}
    for stored_name, tensor in _state_dict(path, content).items():
        if not isinstance(stored_name, str) or not isinstance(tensor, Tensor):
            raise InputError.at(path, f"'{printable(str(stored_name))}' is not a tensor")
        if not tensor.is_floating_point() or tensor.layout != torch.strided or tensor.numel() == 0:
            raise InputError.at(path, f"'{printable(stored_name)}' is not an array of floating-point numbers")
        name = current_name(stored_name)
        if name in tensors:
            raise InputError.at(path, f"has '{printable(name)}' twice")
        tensors[name] = tensor
    if _RESTRAINT_WEIGHT in tensors:
        # AlphaLink's checkpoints have template modules, which its networks never run.
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("template_embedder.")}
    return tensors


def write_pt(path: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> None:
    """Write a state dict in OpenFold's format, atomically."""
    with atomic_write(Path(path)) as temporary:
        torch.save(dict(tensors), temporary)


def current_name(name: str) -> str:
    """Return OpenFold's current name of a parameter from a name of OpenFold 1 or AlphaLink, or with wrappers' prefixes.

    Current names are returned unchanged.
    """
    name = _WRAPPER_PREFIXES.sub("", name)
    for old, new in _OLD_NAMES:
        name = old.sub(new, name)
    return name


def _state_dict(path: Path, content: object) -> Mapping[object, object]:
    """Return the parameters in the content of a file: averaged ones if it has them; `path` is for the error."""
    for keys in (("ema", "params"), ("state_dict",), ("module",), ()):
        value = content
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):
            return value
    raise InputError.at(path, "does not contain a state dict")
