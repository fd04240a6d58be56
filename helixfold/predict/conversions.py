"""The conversions by which an option of another program becomes ours; `helixfold.predict.compatibility` names them."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from data_pipeline.errors import InputError, printable
from helixfold.predict.presets import EFFORTS, MONOMER, MONOMER_PTM

YES, NO = ("", "true", "1", "t", "yes"), ("false", "0", "f", "no")
NO_COMPLEXES = "complexes are not predicted, single chains are"
# Changes what was read by the value of their option; returns a remark for the user, if there is one.
Apply = Callable[[argparse.Namespace, str], str | None]


class CannotError(Exception):
    """Raised where what one of their options asks for is not there; the text says what there is."""


def same(ours: str, convert: Callable[[str], Any] = str) -> Apply:
    """Take the value for one of our options, which must not be given as well with another value."""

    def apply(options: argparse.Namespace, value: str) -> None:
        put(options, ours, convert(value))

    return apply


def put(options: argparse.Namespace, ours: str, wanted: Any) -> None:
    if not hasattr(options, ours):
        raise CannotError(f"--{ours.replace('_', '-')} is not there yet")
    there = getattr(options, ours)
    if there not in (options.defaults[ours], wanted):
        raise CannotError(f"is the same as --{ours.replace('_', '-')}, which is given with another value")
    setattr(options, ours, wanted)


def cannot(sentence: str) -> Apply:
    def apply(_: argparse.Namespace, value: str) -> None:
        if value not in NO:
            raise CannotError(sentence)

    return apply


def no_need(remark: str) -> Apply:
    return lambda options, value: remark


def whole(value: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", value):
        raise ValueError(f"must be a whole number, got '{printable(value)}'")
    return int(value)


def number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"must be a number, got '{printable(value)}'") from None


def one_of(**names: str | None) -> Callable[[str], Any]:
    """Return what translates their values into ours."""

    def convert(value: str) -> str | None:
        if value.lower() not in names:
            raise ValueError(f"must be one of {', '.join(names)}, got '{printable(value)}'")
        return names[value.lower()]

    return convert


def is_yes(value: str) -> bool:
    if value.lower() not in (*YES, *NO):
        raise CannotError(f"is true or false, with a = before it, got '{printable(value)}'")
    return value.lower() in YES


def weights(options: argparse.Namespace, value: str) -> None:
    """Take a directory with the parameters, or with the directory `params` that has them."""
    directory = Path(value)
    put(options, "weights", directory / "params" if (directory / "params").is_dir() else directory)


def data_directory(options: argparse.Namespace, value: str) -> None:
    """Take a directory as AlphaFold's download script fills it: databases, and parameters among them."""
    if (Path(value) / "params").is_dir() and options.weights is None:
        weights(options, value)
    if not options.features:
        put(options, "databases", Path(value))


def inputs(options: argparse.Namespace, value: str) -> None:
    options.inputs = [*options.inputs, *(Path(path) for path in value.split(",") if path)]


def rows(options: argparse.Namespace, value: str) -> None:
    both = re.fullmatch(r"([1-9][0-9]{0,8}):([1-9][0-9]{0,8})", value)
    if both is None:
        raise CannotError(f"is max-seq:max-extra-seq, such as 512:1024, got '{printable(value)}'")
    put(options, "max_msa_rows", int(both[1]))
    put(options, "max_extra_rows", int(both[2]))


def model_preset(options: argparse.Namespace, value: str) -> None:
    if value == "multimer":
        raise CannotError(NO_COMPLEXES)
    put(options, "preset", one_of(**{name: name for name in EFFORTS})(value))


def rank(_: argparse.Namespace, value: str) -> None:
    if value not in ("auto", "plddt"):
        raise CannotError("predictions are ranked by their mean pLDDT; confidence_<model>.json has the pTM of each")


def amber(options: argparse.Namespace, _: str) -> None:
    """Relax all predictions, unless a number is given that says otherwise."""
    if not any(name == "--num-relax" and value != "0" for name, value in options.others):
        put(options, "models_to_relax", "all")


def num_relax(options: argparse.Namespace, value: str) -> None:
    number = whole(value)
    if number > 1:
        raise CannotError("the best prediction is relaxed, or all: --models-to-relax best or all")
    if number == 1:
        put(options, "models_to_relax", "best")
    elif ("--amber", "") not in options.others:
        put(options, "models_to_relax", "none")


def gpu_relax(_: argparse.Namespace, value: str) -> None:
    if not is_yes(value) and torch.cuda.is_available():
        raise CannotError("structures are relaxed on the GPU where there is one; hide it with CUDA_VISIBLE_DEVICES=")


def overwrite(options: argparse.Namespace, value: str) -> None:
    if is_yes(value):
        put(options, "overwrite", True)


def kept(name: str) -> Apply:
    """Remember the value of one of several options that make one of ours, for `models`."""

    def apply(options: argparse.Namespace, value: str) -> None:
        setattr(options, name, value)

    return apply


def models(options: argparse.Namespace) -> None:
    """Choose models by ColabFold's --model-type, --num-models and --model-order, together."""
    kind, count, order = (getattr(options, f"other_{name}", None) for name in ("type", "count", "order"))
    if kind is None and count is None and order is None:
        return
    if options.models or options.preset:
        raise InputError("--model-type, --num-models and --model-order name models, as --models and --preset do")
    sets = {"auto": MONOMER_PTM, "alphafold2_ptm": MONOMER_PTM, "alphafold2": MONOMER}
    if kind is not None and kind not in sets:
        raise InputError(f"--model-type: {printable(kind)} is not there; {', '.join(sets)} are: {NO_COMPLEXES}")
    numbers = (order or "1,2,3,4,5").split(",")
    if not all(re.fullmatch("[1-5]", number) for number in numbers) or len(set(numbers)) < len(numbers):
        raise InputError(
            f"--model-order is models' numbers, such as 1,2,3,4,5, each once; got '{printable(order or '')}'"
        )
    if count is not None and not re.fullmatch("[1-5]", count):
        raise InputError(f"--num-models is a number from 1 to 5, got '{printable(count)}'")
    chosen = [sets[kind or "auto"][int(number) - 1] for number in numbers]
    options.models = chosen[: int(count or 5)]
    # What was read goes to other processes, which resolve it again.
    options.other_type = options.other_count = options.other_order = None
