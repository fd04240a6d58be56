"""`helixfold weights`: get, look at and convert model parameters."""

import argparse
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from data_pipeline.errors import InputError
from data_pipeline.files import require_file
from helixfold import presets
from helixfold.inference import DTYPES
from helixfold.presets import PRESETS
from helixfold.weights import alphafold, openfold
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.download import ARCHIVE_URL, PUBLISHED_SHA256, download_parameters, parameters_directory
from helixfold.weights.find import named_preset, trained_preset
from helixfold.weights.load import load_weights, read_shapes
from helixfold.weights.npz import write_npz
from helixfold.weights.openfold import write_pt
from helixfold.weights.shapes import matching_presets

PUBLISHED = tuple(name for name in PRESETS if re.fullmatch(r"model_[1-5](_ptm)?", name))
WRITTEN = (".npz", ".pt", ".safetensors")
# What stands in for a published checksum.
UNPUBLISHED = "no checksum known: every array was checked, and the file is remembered in sha256.json"
_FORMATS = {"npz": "DeepMind's .npz", "pt": "OpenFold's .pt", "safetensors": "helixfold's .safetensors"}
_BLOCK = re.compile(r"(?<=\.blocks\.)\d+(?=\.)")


def inspect(path: Path) -> None:
    """Print what a parameter file holds and which presets it fits; blocks of a stack share a line."""
    form, shapes = read_shapes(path)
    lines = Counter((_BLOCK.sub("*", name), shape) for name, shape in shapes.items())
    for (name, shape), count in sorted(lines.items()):
        print(f"{name} {list(shape)}{f' x {count}' if count > 1 else ''}")
    fitting = matching_presets(shapes, form)
    print(f"format: {_FORMATS[form]}")
    print(f"arrays: {len(shapes):,}, parameters: {sum(math.prod(shape) for shape in shapes.values()):,}")
    print(f"fits presets: {', '.join(fitting) if fitting else 'none'}")


def convert(
    source: Path, target: Path, preset: str | None = None, *, overwrite: bool = False, dtype: str = "float32"
) -> None:
    """Rewrite a parameter file for another program; the suffix of `target` says which: .npz, .pt or .safetensors.

    `preset` names the model, unless the file says itself which it is (as those of `helixfold train` do), or its name.
    In "bfloat16", which only .safetensors has, numbers are rounded to eight bits of precision, and the file is half as
    large.
    """
    form = target.suffix.lower()
    if form not in WRITTEN:
        raise InputError(f"{target}: give the file to write a name that ends in {', '.join(WRITTEN)}")
    if dtype != "float32" and form != ".safetensors":
        raise InputError(f"{target}: only .safetensors can be written in {dtype}; leave --dtype out")
    require_file(source)
    if target.exists() and not overwrite:
        raise InputError(f"{target}: exists already; choose another name, or add --overwrite")
    chosen = trained_preset(source) if preset is None else None
    if chosen is None and (name := preset or named_preset(source)) is not None:
        chosen = presets.preset(name)
    if chosen is None:
        raise InputError(f"{source}: does not say which model it is; add --preset with one of {', '.join(PRESETS)}")
    config = chosen.model
    state = load_weights(source, config)
    try:
        if form == ".npz":
            write_npz(target, alphafold.from_state_dict(state, config))
        elif form == ".pt":
            write_pt(target, openfold.from_state_dict(state, config))
        else:
            rounded = {name: tensor.to(DTYPES[dtype]) for name, tensor in state.items()}
            save_checkpoint(target, rounded, config.to_dict(), chosen.without_model())
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror or error}") from error
    print(f"{target}: {len(state):,} tensors, {sum(tensor.numel() for tensor in state.values()):,} parameters")


def download(models: Sequence[str], *, directory: Path | None = None, url: str = ARCHIVE_URL) -> None:
    """Fetch DeepMind's published parameters of these models, or find that they are there already."""
    for path in download_parameters(models, directory=directory, url=url):
        known = "checksum as others found it" if path.name in PUBLISHED_SHA256 else UNPUBLISHED
        print(f"{path} ({known})")
    print("AlphaFold parameters (c) DeepMind Technologies Limited, licensed under CC BY 4.0; please cite AlphaFold 2.")


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe `helixfold weights` to the command line."""
    parser = commands.add_parser(
        "weights",
        help="download, inspect and convert model parameters",
        description="Model parameters: DeepMind's .npz, OpenFold's .pt and helixfold's own .safetensors.",
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")

    fetch = actions.add_parser(
        "download",
        help="DeepMind's published parameters (CC BY 4.0)",
        description="Fetch DeepMind's published parameters, 373 MB per model. It goes on where it was interrupted.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    fetch.add_argument(
        "--models",
        nargs="+",
        choices=PUBLISHED,
        default=["model_1_ptm"],
        metavar="MODEL",
        help=f"one or several of {', '.join(PUBLISHED)}",
    )
    fetch.add_argument(
        "--directory", type=Path, default=parameters_directory(), metavar="DIR", help="where to put them"
    )
    fetch.add_argument("--url", default=ARCHIVE_URL, help="a copy of DeepMind's archive elsewhere")
    fetch.set_defaults(run=lambda options: download(options.models, directory=options.directory, url=options.url))

    look = actions.add_parser("inspect", help="what a parameter file holds, and which presets it fits")
    look.add_argument("path", type=Path, metavar="FILE")
    look.set_defaults(run=lambda options: inspect(options.path))

    change = actions.add_parser("convert", help="rewrite a parameter file for another program")
    change.add_argument("source", type=Path, metavar="SOURCE", help="the parameter file to read")
    change.add_argument("target", type=Path, metavar="TARGET", help=f"the file to write: {', '.join(WRITTEN)}")
    change.add_argument("--preset", choices=PRESETS, metavar="MODEL", help=f"which model: {', '.join(PRESETS)}")
    change.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="numbers of a .safetensors file (float32; bfloat16 is half)"
    )
    change.add_argument("--overwrite", action="store_true", help="replace TARGET if it exists")
    change.set_defaults(
        run=lambda options: convert(
            options.source, options.target, options.preset, overwrite=options.overwrite, dtype=options.dtype
        )
    )
