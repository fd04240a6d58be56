"""Inspect, convert, merge and download parameter files: the commands `helixfold weights`.

`WRITABLE_SUFFIXES` are the suffixes of files that can be written. `UNPUBLISHED` is text for a downloaded file without a
published checksum.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import require_file, sha256_of
from helixfold.model import presets
from helixfold.runtime.standard_streams import optional_output, print_summary
from helixfold.weights import alphafold, demonstration, openfold
from helixfold.weights.adapters import AdapterCard, WeightedAdapter, read_card, with_adapters
from helixfold.weights.checkpoint import read_header, save_checkpoint
from helixfold.weights.download import PUBLISHED_SHA256, download_parameters
from helixfold.weights.find import fitting_preset, named_preset, preset_with_file, trained_preset
from helixfold.weights.load import file_format, load_weights, matching_presets, read_shapes
from helixfold.weights.npz import write_npz
from helixfold.weights.openfold import write_pt

WRITABLE_SUFFIXES = (".npz", ".pt", ".safetensors")
# Printed instead of a published checksum.
UNPUBLISHED = "no published checksum; every array was checked, and the checksum was recorded in sha256.json"
_FORMAT_NAMES = {"npz": "DeepMind's .npz", "pt": "OpenFold's .pt", "safetensors": "helixfold's .safetensors"}
_BLOCK_INDEX = re.compile(r"(?<=\.blocks\.)\d+(?=\.)")


def inspect(path: Path, *, arrays: bool = False) -> None:
    """Print the format, number of parameters and provenance of a parameter file, and the presets that it fits.

    With `arrays`, also list the names and shapes of the arrays; the blocks of a stack share a line. For an adapter,
    print the model that it changes, its training and its scores.
    """
    if file_format(path) == "safetensors" and (card := read_card(path)) is not None:
        _print_card(card)
        return
    form, shapes = read_shapes(path)
    fitting = matching_presets(shapes, form)
    print(f"format: {_FORMAT_NAMES[form]}")
    print(f"parameters: {sum(math.prod(shape) for shape in shapes.values()):,}, in {len(shapes):,} arrays")
    print(f"fits presets: {', '.join(fitting) if fitting else 'none'}")
    print(f"provenance: {_provenance(path)}")
    if not arrays:
        print("(--arrays lists the arrays)")
        return
    print("arrays:")
    lines = Counter((_BLOCK_INDEX.sub("*", name), shape) for name, shape in shapes.items())
    for (name, shape), count in sorted(lines.items()):
        print(f"  {name} {list(shape)}{f' x {count}' if count > 1 else ''}")


def _print_card(card: AdapterCard) -> None:
    print(f"format: adapter of helixfold finetune ({card.kind})")
    print(f"base: {printable(card.base_name)} (SHA-256 {printable(card.base[:12])})")
    facts = {name: value for name, value in card.training.items() if name != "settings"}
    for name, value in {**facts, "scores": card.scores}.items():
        print(f"{printable(name).replace('_', ' ')}: {printable(json.dumps(value), 5000)}")


def _provenance(path: Path) -> str:
    """Describe where the parameters come from, by the file's metadata or its checksum."""
    if file_format(path) == "safetensors":
        if demonstration.is_packaged(path):
            return "the demonstration model that comes with helixfold"
        if demonstration.ancestor(path) is not None:
            return "written by helixfold; trained further from its demonstration model"
        began_with = read_header(path).began_with
        return "written by helixfold" + (f"; its training {printable(began_with, 5000)}" if began_with else "")
    if path.name in PUBLISHED_SHA256 and sha256_of(path) == PUBLISHED_SHA256[path.name]:
        return "DeepMind's, by the published copies' checksum"
    return "unknown"


@optional_output()
def convert(
    source: Path, target: Path, preset: str | None = None, *, overwrite: bool = False, dtype: str = "float32"
) -> None:
    """Convert a parameter file to the format of `target`'s suffix: .npz, .pt or .safetensors.

    `preset` is the name of the model. It is not needed if the file has it, as files of `helixfold train` have, or if
    the file's name contains it. In "bfloat16", which only .safetensors supports, numbers have eight bits of precision
    and the file has half the size. A summary is printed. Raise `InputError` if `target` exists, unless `overwrite`.
    """
    if dtype != "float32" and target.suffix.lower() in (".npz", ".pt"):
        raise InputError(f"{target}: only .safetensors can be written in {dtype}; leave --dtype out")
    _require_writable(source, target, overwrite=overwrite)
    settings = preset_of_file(source, preset)
    state = load_weights(source, settings.model)
    began_with = read_header(source).began_with if file_format(source) == "safetensors" else None
    _write(target, state, settings, source=source, began_with=began_with, dtype=dtype)


@optional_output()
def merge(
    source: Path,
    target: Path,
    adapters: Sequence[WeightedAdapter],
    preset: str | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Add adapters to the parameters of the file `source`, and write the result in the format of `target`'s suffix.

    `preset` and `overwrite` are as for `convert`. The notes on the adapters and a summary are printed. Raise
    `InputError` if an adapter was trained on other parameters.
    """
    if not adapters:
        raise InputError("no adapters to add; pass them with --adapter FILE")
    _require_writable(source, target, overwrite=overwrite)
    settings = preset_of_file(source, preset)
    state, notes = with_adapters(load_weights(source, settings.model), adapters, source)
    began_with = f"began with {printable(source.name)}. {' '.join(notes)}"
    _write(target, state, settings, source=source, began_with=began_with)
    print_summary("\n".join(notes))


def _require_writable(source: Path, target: Path, *, overwrite: bool) -> None:
    """Raise `InputError` if a parameter file cannot be rewritten as `target`."""
    if target.suffix.lower() not in WRITABLE_SUFFIXES:
        raise InputError(f"{target}: the output file must have a name that ends in {', '.join(WRITABLE_SUFFIXES)}")
    require_file(source)
    if target.exists() and not overwrite:
        raise InputError(f"{target}: exists already; choose another name, or add --overwrite")


def _write(
    target: Path,
    state: Mapping[str, Tensor],
    settings: presets.Preset,
    *,
    source: Path,
    began_with: str | None,
    dtype: str = "float32",
) -> None:
    """Write parameters from the file `source` in the format of `target`'s suffix."""
    form, config = target.suffix.lower(), settings.model
    try:
        if form == ".npz":
            write_npz(target, alphafold.from_state_dict(state, config))
        elif form == ".pt":
            write_pt(target, openfold.from_state_dict(state, config))
        else:
            rounded = {name: tensor.to(getattr(torch, dtype)) for name, tensor in state.items()}
            save_checkpoint(
                target,
                rounded,
                config.to_dict(),
                settings.without_model(),
                descends_from=demonstration.ancestor(source),
                began_with=began_with,
            )
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror or error}") from error
    if form != ".safetensors" and demonstration.ancestor(source) is not None:
        print(f"{target}: this format cannot hold the note {demonstration.MARK}, so results will not carry it")
    print_summary(f"{target}: {len(state):,} tensors, {sum(tensor.numel() for tensor in state.values()):,} parameters")


def preset_of_file(path: Path, name: str | None) -> presets.Preset:
    """Return the preset called `name`, or if this is None, the preset by the file's metadata, its name or its shapes.

    A note is printed if the shapes determine it. Raise `InputError` if none of these does.
    """
    settings = trained_preset(path) if name is None else None
    return settings or preset_with_file(name or named_preset(path) or fitting_preset(path, "--model"), path)


@optional_output()
def download(models: Sequence[str], *, directory: Path | None = None, url: str | None = None) -> None:
    """Download DeepMind's published parameters of models, unless they exist, and print the paths and the license.

    `directory` and `url` (of another archive) are as for `download_parameters`.
    """
    for path in download_parameters(models, directory=directory, url=url):
        checksum = "checksum equal to published copies" if path.name in PUBLISHED_SHA256 else UNPUBLISHED
        print_summary(f"{path} ({checksum})")
    print_summary(
        "AlphaFold parameters (c) DeepMind Technologies Limited, licensed under CC BY 4.0; please cite AlphaFold 2."
    )
