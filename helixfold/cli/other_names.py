"""What ColabFold's and AlphaFold's users type: their options, with the meaning that they have there.

An option that means the same as one of ours is that one; for one that cannot be followed, a sentence says what there is
instead. None is passed over in silence.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from data_pipeline.errors import InputError, printable
from helixfold.cli.effort import EFFORTS, MONOMER, MONOMER_PTM
from helixfold.cli.searching import NO_TEMPLATE_TABLE, calendar_date

COLABFOLD, ALPHAFOLD = "ColabFold", "AlphaFold"
_YES, _NO = ("", "true", "1", "t", "yes"), ("false", "0", "f", "no")
_VALUES: dict[str, str | int | None] = {"one": None, "none": 0, "flag": "?"}
Apply = Callable[[argparse.Namespace, str], str | None]


@dataclass(frozen=True, kw_only=True)
class OtherName:
    """One of their options: what it is here in a few words, and how it changes ours; it may return a remark."""

    name: str
    program: str
    here: str
    apply: Apply
    takes: str = "one"  # value: "one", "none", or "flag" (a switch, which may have one)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let the parser take them all, without a line in its help; `resolve` is to be called with what it read."""
    parser.set_defaults(others=[])
    for other in OTHER_NAMES:
        parser.add_argument(
            other.name, dest="others", action=_Collect, help=argparse.SUPPRESS, nargs=_VALUES[other.takes]
        )
        if other.takes == "flag" and other.program == ALPHAFOLD:
            negated = f"--no{other.name.removeprefix('--')}"
            parser.add_argument(
                negated, dest="others", action=_Collect, nargs=0, const=other.name, help=argparse.SUPPRESS
            )
    parser.add_argument("--other-names", action=_List, nargs=0, help="list the options of both that are understood")


def resolve(options: argparse.Namespace) -> None:
    """Put what was given by their names under ours; what cannot be followed is an `InputError`."""
    table = {other.name: other for other in OTHER_NAMES}
    for name, value in options.others:
        try:
            remark = table[name].apply(options, value)
        except _CannotError as error:
            raise InputError(f"{name}: {error}") from None
        if remark is not None:
            print(f"helixfold: {name}: {remark}", file=sys.stderr)
    options.others = []
    _models(options)


def listing() -> Iterator[str]:
    """All of them with what they are here, by program."""
    for program in (COLABFOLD, ALPHAFOLD):
        yield f"{program}'s options, and what they are here:"
        mine = [other for other in OTHER_NAMES if other.program == program]
        width = max(len(other.name) for other in mine)
        yield from (f"  {other.name:{width}}  {other.here}" for other in mine)


class _CannotError(Exception):
    """What one of their options asks for is not there; the text says what there is."""


class _Collect(argparse.Action):
    """Remember the option for later, when all are known."""

    def __call__(self, _parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        given = [self.const, "false"] if self.nargs == 0 and self.const else [option_string, values or ""]
        namespace.others = [*namespace.others, (str(given[0]), str(given[1]) if given[1] else "")]


class _List(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        print("\n".join(listing()))
        parser.exit()


def _same(ours: str, convert: Callable[[str], Any] = str) -> Apply:
    """The same as one of ours, which must not be given as well with another value."""

    def apply(options: argparse.Namespace, value: str) -> None:
        try:
            wanted = convert(value)
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise _CannotError(f"{error}") from error
        _put(options, ours, wanted)

    return apply


def _put(options: argparse.Namespace, ours: str, wanted: Any) -> None:
    if not hasattr(options, ours):
        raise _CannotError(f"--{ours.replace('_', '-')} is not there yet")
    there = getattr(options, ours)
    if there not in (options.defaults[ours], wanted):
        raise _CannotError(f"is the same as --{ours.replace('_', '-')}, which is given with another value")
    setattr(options, ours, wanted)


def _cannot(sentence: str) -> Apply:
    def apply(_: argparse.Namespace, value: str) -> None:
        if value not in _NO:
            raise _CannotError(sentence)

    return apply


def _no_need(remark: str) -> Apply:
    return lambda options, value: remark


def _whole(value: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", value):
        raise ValueError(f"must be a whole number, got '{printable(value)}'")
    return int(value)


def _at_least_1(value: str) -> int:
    if _whole(value) < 1:
        raise ValueError(f"must be at least 1, got {value}")
    return int(value)


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"must be a number, got '{printable(value)}'") from None


def _one_of(**names: str | None) -> Callable[[str], Any]:
    """Their values and ours."""

    def convert(value: str) -> str | None:
        if value.lower() not in names:
            raise ValueError(f"must be one of {', '.join(names)}, got '{printable(value)}'")
        return names[value.lower()]

    return convert


def _is_yes(value: str) -> bool:
    if value.lower() not in (*_YES, *_NO):
        raise _CannotError(f"is true or false, with a = before it, got '{printable(value)}'")
    return value.lower() in _YES


def _weights(options: argparse.Namespace, value: str) -> None:
    """A directory with the parameters, or with the directory `params` that has them."""
    directory = Path(value)
    _put(options, "weights", directory / "params" if (directory / "params").is_dir() else directory)


def _data_directory(options: argparse.Namespace, value: str) -> None:
    """As AlphaFold's download script fills it: databases, and parameters among them."""
    if (Path(value) / "params").is_dir() and options.weights is None:
        _weights(options, value)
    if not options.features:
        _put(options, "databases", Path(value))


def _inputs(options: argparse.Namespace, value: str) -> None:
    options.inputs = [*options.inputs, *(Path(path) for path in value.split(",") if path)]


def _rows(options: argparse.Namespace, value: str) -> None:
    both = re.fullmatch(r"([1-9][0-9]{0,8}):([1-9][0-9]{0,8})", value)
    if both is None:
        raise _CannotError(f"is max-seq:max-extra-seq, such as 512:1024, got '{printable(value)}'")
    _put(options, "max_msa_rows", int(both[1]))
    _put(options, "max_extra_rows", int(both[2]))


def _model_preset(options: argparse.Namespace, value: str) -> None:
    if value == "multimer":
        raise _CannotError(_NO_COMPLEXES)
    _put(options, "preset", _one_of(**{name: name for name in EFFORTS})(value))


def _rank(_: argparse.Namespace, value: str) -> None:
    if value not in ("auto", "plddt"):
        raise _CannotError("predictions are ranked by their mean pLDDT; confidence_<model>.json has the pTM of each")


def _amber(options: argparse.Namespace, _: str) -> None:
    """All of them, unless a number is given that says otherwise."""
    if not any(name == "--num-relax" and value != "0" for name, value in options.others):
        _put(options, "models_to_relax", "all")


def _num_relax(options: argparse.Namespace, value: str) -> None:
    number = _whole(value)
    if number > 1:
        raise _CannotError("the best prediction is relaxed, or all: --models-to-relax best or all")
    if number == 1:
        _put(options, "models_to_relax", "best")
    elif ("--amber", "") not in options.others:
        _put(options, "models_to_relax", "none")


def _gpu_relax(_: argparse.Namespace, value: str) -> None:
    if not _is_yes(value) and torch.cuda.is_available():
        raise _CannotError("structures are relaxed on the GPU where there is one; hide it with CUDA_VISIBLE_DEVICES=")


def _use_gpu(options: argparse.Namespace, value: str) -> None:
    _put(options, "device", "cuda" if _is_yes(value) else "cpu")


def _run_relax(options: argparse.Namespace, value: str) -> None:
    _put(options, "models_to_relax", "all" if _is_yes(value) else "none")


def _switch(ours: str, value_if_yes: Any = True) -> Apply:
    def apply(options: argparse.Namespace, value: str) -> None:
        if _is_yes(value):
            _put(options, ours, value_if_yes)

    return apply


def _kept(name: str) -> Apply:
    """Of several that make one thing of ours: remembered, for `_models`."""

    def apply(options: argparse.Namespace, value: str) -> None:
        setattr(options, name, value)

    return apply


def _models(options: argparse.Namespace) -> None:
    """ColabFold's --model-type, --num-models and --model-order, together."""
    kind, count, order = (getattr(options, f"other_{name}", None) for name in ("type", "count", "order"))
    if kind is None and count is None and order is None:
        return
    if options.models or options.preset:
        raise InputError("--model-type, --num-models and --model-order name models, as --models and --preset do")
    sets = {"auto": MONOMER_PTM, "alphafold2_ptm": MONOMER_PTM, "alphafold2": MONOMER}
    if kind is not None and kind not in sets:
        raise InputError(f"--model-type: {printable(kind)} is not there; {', '.join(sets)} are: {_NO_COMPLEXES}")
    numbers = (order or "1,2,3,4,5").split(",")
    if not all(re.fullmatch("[1-5]", number) for number in numbers) or len(set(numbers)) < len(numbers):
        raise InputError(
            f"--model-order is models' numbers, such as 1,2,3,4,5, each once; got '{printable(order or '')}'"
        )
    if count is not None and not re.fullmatch("[1-5]", count):
        raise InputError(f"--num-models is a number from 1 to 5, got '{printable(count)}'")
    models = [sets[kind or "auto"][int(number) - 1] for number in numbers]
    options.models = models[: int(count or 5)]


_NO_COMPLEXES = "complexes are not predicted, single chains are"
_PROFILE = "name the databases in a profile and give it with --databases, or their directory; README shows one"
_ON_PATH = "programs are found on PATH; put its directory there"
_PROTOCOL = "relaxation follows AlphaFold's protocol, whose numbers are fixed"
_NO_EFFECT = "nothing is compiled for a length here, so it is without effect"


def _names(program: str, takes: str, here: str, apply: Apply, *names: str) -> Sequence[OtherName]:
    return [OtherName(name=f"--{name}", program=program, here=here, apply=apply, takes=takes) for name in names]


OTHER_NAMES: tuple[OtherName, ...] = (
    *_names(COLABFOLD, "one", "--num-recycles", _same("num_recycles", _whole), "num-recycle"),
    *_names(
        COLABFOLD, "one", "--recycle-tolerance", _same("recycle_tolerance", _number), "recycle-early-stop-tolerance"
    ),
    *_names(COLABFOLD, "one", "--seed", _same("seed", _whole), "random-seed"),
    *_names(COLABFOLD, "one", "--models (auto, alphafold2_ptm, alphafold2)", _kept("other_type"), "model-type"),
    *_names(COLABFOLD, "one", "--models, the first of them", _kept("other_count"), "num-models"),
    *_names(COLABFOLD, "one", "--models, in this order", _kept("other_order"), "model-order"),
    *_names(COLABFOLD, "none", "--overwrite", _switch("overwrite"), "overwrite-existing-results"),
    *_names(COLABFOLD, "one", "--msa-server", _same("msa_server"), "host-url"),
    *_names(COLABFOLD, "one", "--templates", _same("templates", lambda value: [Path(value)]), "custom-template-path"),
    *_names(COLABFOLD, "one", "--weights", _weights, "data"),
    *_names(COLABFOLD, "one", "--max-msa-rows", _same("max_msa_rows", _at_least_1), "max-seq"),
    *_names(COLABFOLD, "one", "--max-extra-rows", _same("max_extra_rows", _at_least_1), "max-extra-seq"),
    *_names(COLABFOLD, "one", "--max-msa-rows and --max-extra-rows", _rows, "max-msa"),
    *_names(COLABFOLD, "none", "--models-to-relax all", _amber, "amber"),
    *_names(COLABFOLD, "one", "--models-to-relax (0 none, 1 best)", _num_relax, "num-relax"),
    *_names(COLABFOLD, "none", "what is done where there is one", _gpu_relax, "use-gpu-relax"),
    *_names(COLABFOLD, "one", "by pLDDT, as it is done", _rank, "rank"),
    *_names(COLABFOLD, "none", "without effect", _no_need(_NO_EFFECT), "disable-unified-memory"),
    *_names(COLABFOLD, "one", "without effect", _no_need(_NO_EFFECT), "recompile-padding"),
    *_names(
        COLABFOLD,
        "none",
        "not there; --save-logits",
        _cannot("nothing is pickled; --save-logits writes the logits of all heads"),
        "save-all",
    ),
    *_names(
        COLABFOLD,
        "none",
        "not there; notebooks show how",
        _cannot("they are not written; from Python, the network's outputs have them (see the notebooks)"),
        "save-recycles",
        "save-single-representations",
        "save-pair-representations",
    ),
    *_names(
        COLABFOLD,
        "one",
        "not there; FASTA headers name targets",
        _cannot("targets are named by the first word of their headers; change it there"),
        "jobname-prefix",
    ),
    *_names(COLABFOLD, "one", "not there", _cannot(_NO_COMPLEXES), "pair-mode", "pair-strategy"),
    *_names(
        COLABFOLD,
        "none",
        "not there",
        _cannot(_NO_COMPLEXES),
        "disable-cluster-profile",
        "calc-extra-ptm",
        "no-use-probs-extra",
    ),
    *_names(
        COLABFOLD,
        "one",
        "--templates",
        _cannot(f"structures of your own are given with --templates; {NO_TEMPLATE_TABLE}"),
        "pdb-hit-file",
        "local-pdb-path",
    ),
    *_names(
        COLABFOLD,
        "none",
        "--num-seeds",
        _cannot("dropout is for training; for other predictions, --num-seeds draws other alignments"),
        "use-dropout",
    ),
    *_names(
        COLABFOLD,
        "flag",
        "--templates",
        _cannot("no structure is started from; give it as a template with --templates"),
        "initial-guess",
    ),
    *_names(
        COLABFOLD,
        "none",
        "helixfold features",
        _cannot("`helixfold features` makes alignments and features and folds nothing"),
        "msa-only",
    ),
    *_names(COLABFOLD, "none", "not there", _cannot("inputs of AlphaFold 3 are not written"), "af3-json"),
    *_names(
        COLABFOLD,
        "one",
        "fixed",
        _cannot(_PROTOCOL),
        "relax-max-iterations",
        "relax-tolerance",
        "relax-stiffness",
        "relax-max-outer-iterations",
    ),
    *_names(ALPHAFOLD, "one", "files, with commas between", _inputs, "fasta_paths"),
    *_names(ALPHAFOLD, "one", "--output", _same("output", Path), "output_dir"),
    *_names(ALPHAFOLD, "one", "--databases, and --weights if it has params/", _data_directory, "data_dir"),
    *_names(ALPHAFOLD, "one", "--preset", _model_preset, "model_preset"),
    *_names(
        ALPHAFOLD,
        "one",
        "--models, with commas between",
        _same("models", lambda value: value.split(",")),
        "model_names",
    ),
    *_names(ALPHAFOLD, "one", "--seed", _same("seed", _whole), "random_seed"),
    *_names(ALPHAFOLD, "one", "--max-template-date", _same("max_template_date", calendar_date), "max_template_date"),
    *_names(
        ALPHAFOLD,
        "one",
        "--db-preset",
        _same("db_preset", _one_of(full_dbs="full_dbs", reduced_dbs="reduced_dbs")),
        "db_preset",
    ),
    *_names(
        ALPHAFOLD,
        "one",
        "--models-to-relax",
        _same("models_to_relax", _one_of(best="best", all="all", none="none")),
        "models_to_relax",
    ),
    *_names(ALPHAFOLD, "flag", "--models-to-relax all or none", _run_relax, "run_relax"),
    *_names(ALPHAFOLD, "flag", "what is done where there is one", _gpu_relax, "use_gpu_relax", "enable_gpu_relax"),
    *_names(ALPHAFOLD, "flag", "--device cuda or cpu", _use_gpu, "use_gpu"),
    *_names(ALPHAFOLD, "one", "--devices", _same("devices"), "gpu_devices"),
    *_names(
        ALPHAFOLD,
        "flag",
        "what is always done",
        _no_need("results in msas/ are used again where they are those of the same search"),
        "use_precomputed_msas",
    ),
    *_names(
        ALPHAFOLD,
        "one",
        "--num-seeds",
        _cannot(f"{_NO_COMPLEXES}; --num-seeds makes several predictions by each model"),
        "num_multimer_predictions_per_model",
    ),
    *_names(
        ALPHAFOLD,
        "flag",
        "helixfold benchmark",
        _cannot("`helixfold benchmark model` measures; timings.json has the times of every prediction"),
        "benchmark",
    ),
    *_names(
        ALPHAFOLD,
        "one",
        "--databases with a profile",
        _cannot(_PROFILE),
        *(
            f"{name}_database_path"
            for name in (
                *("uniref90", "mgnify", "bfd", "small_bfd", "uniref30", "uniclust30", "uniprot", "pdb70"),
                "pdb_seqres",
            )
        ),
        "template_mmcif_dir",
        "obsolete_pdbs_path",
    ),
    *_names(
        ALPHAFOLD,
        "one",
        "found on PATH",
        _cannot(_ON_PATH),
        *(f"{name}_binary_path" for name in ("jackhmmer", "hhblits", "hhsearch", "hmmsearch", "hmmbuild", "kalign")),
    ),
)
