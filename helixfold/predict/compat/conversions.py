"""Convert options of ColabFold and AlphaFold to ours; the table in `helixfold.predict.compat.options` names them."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from data_pipeline.errors import InputError, printable
from helixfold.options import RepresentationName, integer
from helixfold.predict.presets import MONOMER, MONOMER_PTM, MULTIMER, PREDICTION_PRESETS

_NO = ("false", "0", "f", "no")
# A function that changes our options, each of them an attribute, by the value of another program's option. It returns a
# remark for the user, or None. Switches have the values true and false.
Conversion = Callable[[SimpleNamespace, str], str | None]


class UnsupportedError(Exception):
    """Error for an option of another program that cannot be followed; the text says what to do instead."""


def same(ours: str, read: Callable[[str], Any] = str) -> Conversion:
    """Return a conversion that sets our option `ours` to the value, read by `read`."""

    def convert(options: SimpleNamespace, value: str) -> None:
        put(options, ours, read(value))

    return convert


def put(options: SimpleNamespace, ours: str, value: Any) -> None:
    """Set our option `ours` to a value. Raise `UnsupportedError` if the user gave it with another value."""
    if getattr(options, ours) not in (getattr(options.defaults, ours), value):
        raise UnsupportedError(f"is the same as --{ours.replace('_', '-')}, which is given with another value")
    setattr(options, ours, value)


def unsupported(sentence: str) -> Conversion:
    """Return a conversion that raises `UnsupportedError` with this sentence, unless the option is switched off."""

    def convert(_: SimpleNamespace, value: str) -> None:
        if value not in _NO:
            raise UnsupportedError(sentence)

    return convert


def without_effect(remark: str) -> Conversion:
    """Return a conversion that changes nothing and returns this remark."""
    return lambda options, value: remark


def one_of(*names: str) -> Callable[[str], str]:
    """Return a function that reads one of these names in upper or lower case. It raises ValueError for others."""

    def read(value: str) -> str:
        if value.lower() not in names:
            raise ValueError(f"must be one of {', '.join(names)}, got '{printable(value)}'")
        return value.lower()

    return read


def weights(options: SimpleNamespace, value: str) -> None:
    """Set --weights to a directory of parameters, or to the directory `params` in it if there is one."""
    directory = Path(value)
    put(options, "weights", directory / "params" if (directory / "params").is_dir() else directory)


def data_directory(options: SimpleNamespace, value: str) -> None:
    """Set --databases to a directory that AlphaFold's download script filled, and --weights to its parameters.

    Weights that are already set stay, and databases are not needed if features are given.
    """
    if (Path(value) / "params").is_dir() and options.weights is None:
        weights(options, value)
    if not options.features:
        put(options, "databases", Path(value))


def inputs(options: SimpleNamespace, value: str) -> None:
    """Add input files, which are separated by commas."""
    options.inputs = (*options.inputs, *(Path(path) for path in value.split(",") if path))


def rows(options: SimpleNamespace, value: str) -> None:
    """Set --max-msa-rows and --max-extra-rows to the two numbers of ColabFold's --max-msa."""
    both = re.fullmatch(r"([1-9][0-9]{0,8}):([1-9][0-9]{0,8})", value)
    if both is None:
        raise UnsupportedError(f"is max-seq:max-extra-seq, such as 512:1024, got '{printable(value)}'")
    put(options, "max_msa_rows", int(both[1]))
    put(options, "max_extra_rows", int(both[2]))


def model_preset(options: SimpleNamespace, value: str) -> None:
    """Set --preset to AlphaFold's --model_preset."""
    put(options, "preset", one_of(*PREDICTION_PRESETS)(value))


def rank(_: SimpleNamespace, value: str) -> None:
    """Accept ranking by pLDDT, and of complexes by ipTM and pTM. Raise `UnsupportedError` for any other."""
    if value not in ("auto", "plddt", "multimer"):
        raise UnsupportedError(
            "predictions are ranked by their mean pLDDT, and those of complexes by ipTM and pTM; "
            "confidence_<model>.json has the pTM of each"
        )


def amber(options: SimpleNamespace, _: str) -> None:
    """Set --models-to-relax to all, unless --num-relax is given with a number other than 0."""
    if options.others.get("--num-relax", "0") == "0":
        put(options, "models_to_relax", "all")


def representation(name: RepresentationName) -> Conversion:
    """Return a conversion that adds a representation to those of --save-representations."""

    def convert(options: SimpleNamespace, value: str) -> None:
        if value in _NO:
            return
        options.save_representations = tuple(dict.fromkeys((*options.save_representations, name)))

    return convert


def dropout(options: SimpleNamespace, value: str) -> None:
    """Set --dropout."""
    put(options, "dropout", value not in _NO)


def num_relax(options: SimpleNamespace, value: str) -> None:
    """Set --models-to-relax to best for 1, or to none for 0, unless --amber is given.

    Raise `UnsupportedError` for larger numbers.
    """
    number = integer(value)
    if number > 1:
        raise UnsupportedError("the best prediction is relaxed, or all: --models-to-relax best or all")
    if number == 1:
        put(options, "models_to_relax", "best")
    elif "--amber" not in options.others:
        put(options, "models_to_relax", "none")


def gpu_relax(_: SimpleNamespace, value: str) -> None:
    """Accept relaxation on a GPU where there is one.

    Raise `UnsupportedError` if the option is switched off on a machine with a GPU.
    """
    from torch.cuda import is_available  # noqa: PLC0415 (torch takes long to import, and this option is rare)

    if value == "false" and is_available():
        raise UnsupportedError("structures are relaxed on the GPU if there is one; hide it with CUDA_VISIBLE_DEVICES=")


def overwrite(options: SimpleNamespace, value: str) -> None:
    """Set --overwrite if the option is switched on."""
    if value == "true":
        put(options, "overwrite", True)


def remembered(_: SimpleNamespace, __: str) -> None:
    """Change nothing; `models` and `precomputed_alignments` read these options later, together with others."""


def precomputed_alignments(options: SimpleNamespace) -> None:
    """Set --msa to the output directory and --msa-mode to files if AlphaFold's --use_precomputed_msas is on.

    Raise `InputError` for any other --msa-mode, and if there is no output directory.
    """
    if options.others.get("--use_precomputed_msas", "false") in _NO:
        return
    if options.msa_mode not in ("auto", "files"):
        raise InputError(
            f"--use_precomputed_msas sets --msa-mode files and cannot be combined with --msa-mode {options.msa_mode}"
        )
    directory = options.output
    if len(options.inputs) == 1 and (named := directory / options.inputs[0].stem).is_dir():
        directory = named  # AlphaFold names it after the FASTA file, not after its record
    if not directory.is_dir():
        problem = (
            "there is no such output directory; --use_precomputed_msas reads the alignments in it; omit this option"
        )
        raise InputError.at(directory, problem)
    options.msa, options.msa_mode = (*options.msa, directory), "files"


def models(options: SimpleNamespace) -> None:
    """Set --models by ColabFold's --model-type, --num-models and --model-order together.

    Raise `InputError` if one of them has a value that is not allowed, or if --models or --preset is given too.
    """
    kind, count, order = (options.others.get(name) for name in ("--model-type", "--num-models", "--model-order"))
    if kind is None and count is None and order is None:
        return
    if options.models or options.preset:
        raise InputError("--model-type, --num-models and --model-order name models, as --models and --preset do")
    sets = {"auto": MONOMER_PTM, "alphafold2_ptm": MONOMER_PTM, "alphafold2": MONOMER}
    releases = ("v3", "v2", "v1")
    sets |= {f"alphafold2_multimer_{name}": MULTIMER[5 * place :][:5] for place, name in enumerate(releases)}
    if kind is not None and kind not in sets:
        raise InputError(f"--model-type: {printable(kind)} is not there; {', '.join(sets)} are")
    numbers = (order or "1,2,3,4,5").split(",")
    if not all(re.fullmatch("[1-5]", number) for number in numbers) or len(set(numbers)) < len(numbers):
        raise InputError(
            f"--model-order is models' numbers, such as 1,2,3,4,5, each once; got '{printable(order or '')}'"
        )
    if count is not None and not re.fullmatch("[1-5]", count):
        raise InputError(f"--num-models is a number from 1 to 5, got '{printable(count)}'")
    chosen = [sets[kind or "auto"][int(number) - 1] for number in numbers]
    options.models = tuple(chosen[: int(count or 5)])
