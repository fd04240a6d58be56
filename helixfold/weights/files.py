"""Inspect, convert and download parameter files, for `helixfold weights`."""

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
from helixfold.weights.adapters import WeightedAdapter, with_adapters
from helixfold.weights.checkpoint import read_header, save_checkpoint
from helixfold.weights.download import PUBLISHED_SHA256, download_parameters
from helixfold.weights.find import fitting_preset, named_preset, trained_preset
from helixfold.weights.load import file_format, load_weights, matching_presets, read_shapes
from helixfold.weights.npz import write_npz
from helixfold.weights.openfold import write_pt

WRITTEN = (".npz", ".pt", ".safetensors")
# What stands in for a published checksum.
UNPUBLISHED = "no checksum known: every array was checked, and the file is remembered in sha256.json"
_FORMATS = {"npz": "DeepMind's .npz", "pt": "OpenFold's .pt", "safetensors": "helixfold's .safetensors"}
_BLOCK = re.compile(r"(?<=\.blocks\.)\d+(?=\.)")


def inspect(path: Path, *, arrays: bool = False) -> None:
    """Print what a parameter file holds, which presets it fits and where it comes from.

    With `arrays`, list the arrays too; blocks of a stack share a line.
    """
    form, shapes = read_shapes(path)
    fitting = matching_presets(shapes, form)
    print(f"format: {_FORMATS[form]}")
    print(f"parameters: {sum(math.prod(shape) for shape in shapes.values()):,}, in {len(shapes):,} arrays")
    print(f"fits presets: {', '.join(fitting) if fitting else 'none'}")
    print(f"provenance: {_provenance(path)}")
    if not arrays:
        print("(--arrays lists the arrays)")
        return
    print("arrays:")
    lines = Counter((_BLOCK.sub("*", name), shape) for name, shape in shapes.items())
    for (name, shape), count in sorted(lines.items()):
        print(f"  {name} {list(shape)}{f' x {count}' if count > 1 else ''}")


def _provenance(path: Path) -> str:
    """Say where a file's parameters come from, as far as the file says it or its checksum is known."""
    if file_format(path) == "safetensors":
        if demonstration.is_packaged(path):
            return "the demonstration model that comes with helixfold"
        if demonstration.ancestor(path) is not None:
            return "written by helixfold; trained further from its demonstration model"
        began_with = read_header(path).began_with
        return "written by helixfold" + (f"; its training {printable(began_with, 5000)}" if began_with else "")
    if path.name in PUBLISHED_SHA256 and sha256_of(path) == PUBLISHED_SHA256[path.name]:
        return "DeepMind's, by the published copies' checksum"
    return "the file does not say"


@optional_output()
def convert(
    source: Path, target: Path, preset: str | None = None, *, overwrite: bool = False, dtype: str = "float32"
) -> None:
    """Rewrite a parameter file for another program; the suffix of `target` says which: .npz, .pt or .safetensors.

    `preset` names the model, unless the file says itself which it is (as those of `helixfold train` do), or its name.
    In "bfloat16", which only .safetensors has, numbers are rounded to eight bits of precision, and the file is half as
    large.
    """
    if dtype != "float32" and target.suffix.lower() in (".npz", ".pt"):
        raise InputError(f"{target}: only .safetensors can be written in {dtype}; leave --dtype out")
    _require_writable(source, target, overwrite=overwrite)
    chosen = preset_of_file(source, preset)
    state = load_weights(source, chosen.model)
    began_with = read_header(source).began_with if file_format(source) == "safetensors" else None
    _write(target, state, chosen, source=source, began_with=began_with, dtype=dtype)


@optional_output()
def merge(
    source: Path,
    target: Path,
    adapters: Sequence[WeightedAdapter],
    preset: str | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Add adapters to the parameters in a file, and write a file of them in the format that `target`'s suffix says.

    `preset` is as for `convert`. Raise `InputError` if an adapter was trained on other parameters.
    """
    if not adapters:
        raise InputError("name the adapters to add, with --adapter FILE")
    _require_writable(source, target, overwrite=overwrite)
    chosen = preset_of_file(source, preset)
    state, notes = with_adapters(load_weights(source, chosen.model), adapters, source)
    began_with = f"began with {printable(source.name)}. {' '.join(notes)}"
    _write(target, state, chosen, source=source, began_with=began_with)
    print_summary("\n".join(notes))


def _require_writable(source: Path, target: Path, *, overwrite: bool) -> None:
    """Raise `InputError` if a parameter file cannot be rewritten as `target`."""
    if target.suffix.lower() not in WRITTEN:
        raise InputError(f"{target}: give the file to write a name that ends in {', '.join(WRITTEN)}")
    require_file(source)
    if target.exists() and not overwrite:
        raise InputError(f"{target}: exists already; choose another name, or add --overwrite")


def _write(
    target: Path,
    state: Mapping[str, Tensor],
    chosen: presets.Preset,
    *,
    source: Path,
    began_with: str | None,
    dtype: str = "float32",
) -> None:
    """Write parameters that come from the file `source` in the format that the suffix of `target` says."""
    form, config = target.suffix.lower(), chosen.model
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
                chosen.without_model(),
                descends_from=demonstration.ancestor(source),
                began_with=began_with,
            )
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror or error}") from error
    if form != ".safetensors" and demonstration.ancestor(source) is not None:
        print(f"{target}: this format cannot hold the note {demonstration.MARK}, so results will not carry it")
    print_summary(f"{target}: {len(state):,} tensors, {sum(tensor.numel() for tensor in state.values()):,} parameters")


def preset_of_file(path: Path, given: str | None) -> presets.Preset:
    """Return the preset of that name, or else the one that a parameter file, its name or its shapes say.

    Raise `InputError` if none of them says one.
    """
    chosen = trained_preset(path) if given is None else None
    return chosen or presets.preset(given or named_preset(path) or fitting_preset(path, "--model"))


@optional_output()
def download(models: Sequence[str], *, directory: Path | None = None, url: str | None = None) -> None:
    """Fetch DeepMind's published parameters of these models, or find that they are there already."""
    for path in download_parameters(models, directory=directory, url=url):
        known = "checksum as others found it" if path.name in PUBLISHED_SHA256 else UNPUBLISHED
        print_summary(f"{path} ({known})")
    print_summary(
        "AlphaFold parameters (c) DeepMind Technologies Limited, licensed under CC BY 4.0; please cite AlphaFold 2."
    )
