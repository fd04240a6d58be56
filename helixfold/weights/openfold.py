"""OpenFold's checkpoints, `.pt`: the same numbers under OpenFold's names, in and out."""

import os
import pickle
import re
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from data_pipeline.archive import Limits, open_archive
from data_pipeline.errors import InputError, printable
from data_pipeline.files import replacing
from helixfold.config import ModelConfig
from helixfold.weights.conversion import KEEP, Row, to_ours, to_theirs
from helixfold.weights.table import table

# A training checkpoint has a member per tensor of model, average and optimizer. torch.save never compresses.
LIMITS = Limits(members=100_000, unpacked_bytes=32 * 2**30, compressed=False)
# What stands beside the tensors, which is read word by word: a training checkpoint has two million bytes of it.
MAX_NAMES_BYTES = 2**23
# Prefixes of wrappers: DeepSpeed's and Lightning's modules.
_WRAPPERS = re.compile(r"^(?:module\.|model\.)+")
# What modules were called before OpenFold learnt multimers (version 1), and what they are called now.
_OLD_NAMES = (
    (re.compile(r"^template_angle_embedder\."), "template_embedder.template_single_embedder."),
    (re.compile(r"^(template_pair_embedder|template_pair_stack|template_pointwise_att)\."), r"template_embedder.\1."),
    (re.compile(r"\.core\.(msa_transition|outer_product_mean)\."), r".\1."),
    (re.compile(r"\.core\.(tri_\w+|pair_transition)\."), r".pair_stack.\1."),
    (re.compile(r"\.ipa\.(linear_q_points|linear_kv_points)\.(weight|bias)$"), r".ipa.\1.linear.\2"),
)
# What torch.load raises on damaged or hostile files.
_DAMAGE = (
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


def rows(config: ModelConfig) -> tuple[Row, ...]:
    """The two-way table between our state dict and OpenFold's for a model with these settings."""
    return tuple(
        Row(
            ours=(parameter.ours.replace("*", str(block)),),
            theirs=tuple(name.replace("*", str(block)) for name in parameter.openfold),
            axes=KEEP,
            stacked=False,
        )
        for parameter in table(config)
        for block in range(parameter.blocks or 1)
    )


def to_state_dict(tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our state dict from OpenFold's. Raises `InputError` if names are missing or left over."""
    return to_ours(rows(config), tensors)


def from_state_dict(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """OpenFold's state dict from ours; undoes `to_state_dict` bit for bit."""
    return to_theirs(rows(config), {name: tensor.detach().cpu() for name, tensor in state.items()})


def read_pt(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The model's tensors in an OpenFold checkpoint under today's names, memory-mapped.

    Takes the moving average where there is one, as OpenFold does, and drops the prefixes of wrappers.
    Raises `InputError` for anything that holds more than tensors and plain containers.
    """
    path = Path(path)
    with open_archive(path, LIMITS) as archive:
        names = max((member.file_size for member in archive.infolist() if member.filename.endswith(".pkl")), default=0)
    if names > MAX_NAMES_BYTES:
        raise InputError.at(path, f"has {names:,} bytes of names beside its tensors, which no model's parameters need")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters about an odd file is said in the error
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except _DAMAGE as error:
        reason = printable(str(error).split("\n", 1)[0])
        raise InputError.at(
            path, f"is not a checkpoint of tensors alone ({reason}); save the model's state dict and nothing else"
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
    return tensors


def write_pt(path: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> None:
    """Write a state dict as OpenFold reads it, whole or not at all."""
    with replacing(Path(path)) as temporary:
        torch.save(dict(tensors), temporary)


def current_name(name: str) -> str:
    """Today's name of a parameter that wrappers or an older OpenFold named."""
    name = _WRAPPERS.sub("", name)
    for old, new in _OLD_NAMES:
        name = old.sub(new, name)
    return name


def _state_dict(path: Path, content: object) -> Mapping[object, object]:
    for keys in (("ema", "params"), ("state_dict",), ("module",), ()):
        found = content
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            return found
    raise InputError.at(path, "holds no state dict")
