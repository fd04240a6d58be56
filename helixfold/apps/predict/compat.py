"""Define the options of ColabFold's and AlphaFold's command lines that `helixfold predict` understands.

An option that means the same as one of ours sets ours. An option that cannot be followed is refused with a sentence
that says what to do instead. None is ignored silently.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Self

from cyclopts import Group, Parameter, Token

from data_pipeline.errors import InputError, printable
from helixfold.apps.predict.options import NO_TEMPLATE_TABLE, PredictOptions
from helixfold.apps.predict.presets import MONOMER, MONOMER_PTM, MULTIMER, PREDICTION_PRESETS
from helixfold.options import RepresentationName, integer, number, positive

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


COLABFOLD, ALPHAFOLD = "ColabFold", "AlphaFold"


@dataclass(frozen=True, kw_only=True)
class CompatibilityFlag:
    """An option of another program.

    `equivalent` says in a few words what corresponds to it, and `convert` changes our options accordingly.
    """

    name: str
    program: str
    equivalent: str
    convert: Conversion | None  # None: our option has the same name, with hyphens
    takes: str  # "value" or "switch"


_PROFILE = "pass a profile of the databases (such as examples/databases.toml) or their directory with --databases"
_ON_PATH = "programs are found on PATH; put its directory there"
_PROTOCOL = "relaxation follows AlphaFold's protocol, whose numbers are fixed"
_TEMPLATE_TABLE = f"structures of your own are given with --templates; {NO_TEMPLATE_TABLE}"
_NO_EFFECT = "nothing is compiled for a length here, so it is without effect"


def _flags(
    program: str, takes: str, equivalent: str, convert: Conversion | None, *names: str
) -> Sequence[CompatibilityFlag]:
    return [
        CompatibilityFlag(name=f"--{name}", program=program, equivalent=equivalent, convert=convert, takes=takes)
        for name in names
    ]


COMPATIBILITY_FLAGS: tuple[CompatibilityFlag, ...] = (
    *_flags(COLABFOLD, "value", "--num-recycles", same("num_recycles", integer), "num-recycle"),
    *_flags(
        COLABFOLD, "value", "--recycle-tolerance", same("recycle_tolerance", number), "recycle-early-stop-tolerance"
    ),
    *_flags(COLABFOLD, "value", "--seed", same("seed", integer), "random-seed"),
    *_flags(
        COLABFOLD,
        "value",
        "--models (auto, alphafold2, _ptm, _multimer_v1, _v2, _v3)",
        remembered,
        "model-type",
    ),
    *_flags(COLABFOLD, "value", "--models, the first of them", remembered, "num-models"),
    *_flags(COLABFOLD, "value", "--models, in this order", remembered, "model-order"),
    *_flags(COLABFOLD, "switch", "--overwrite", overwrite, "overwrite-existing-results"),
    *_flags(COLABFOLD, "value", "--msa-server", same("msa_server"), "host-url"),
    *_flags(COLABFOLD, "value", "--templates", same("templates", lambda value: (Path(value),)), "custom-template-path"),
    *_flags(COLABFOLD, "value", "--weights", weights, "data"),
    *_flags(COLABFOLD, "value", "--max-msa-rows", same("max_msa_rows", positive), "max-seq"),
    *_flags(COLABFOLD, "value", "--max-extra-rows", same("max_extra_rows", positive), "max-extra-seq"),
    *_flags(COLABFOLD, "value", "--max-msa-rows and --max-extra-rows", rows, "max-msa"),
    *_flags(COLABFOLD, "switch", "--models-to-relax all", amber, "amber"),
    *_flags(COLABFOLD, "value", "--models-to-relax (0 none, 1 best)", num_relax, "num-relax"),
    *_flags(COLABFOLD, "switch", "as it is done on a machine with a GPU", gpu_relax, "use-gpu-relax"),
    *_flags(COLABFOLD, "value", "as it is done: by pLDDT, or by ipTM and pTM of complexes", rank, "rank"),
    *_flags(COLABFOLD, "switch", "without effect", without_effect(_NO_EFFECT), "disable-unified-memory"),
    *_flags(COLABFOLD, "value", "without effect", without_effect(_NO_EFFECT), "recompile-padding"),
    *_flags(
        COLABFOLD,
        "switch",
        "not there; --save-logits",
        unsupported("nothing is pickled; --save-logits writes the logits of all heads"),
        "save-all",
    ),
    *_flags(
        COLABFOLD,
        "switch",
        "--save-representations single",
        representation("single"),
        "save-single-representations",
    ),
    *_flags(COLABFOLD, "switch", "--save-representations pair", representation("pair"), "save-pair-representations"),
    *_flags(
        COLABFOLD,
        "value",
        "not there; FASTA headers name targets",
        unsupported("targets are named by the first word of their headers; change it there"),
        "jobname-prefix",
    ),
    *_flags(
        COLABFOLD,
        "switch",
        "as AlphaFold-Multimer does",
        unsupported("features and scores of complexes are AlphaFold-Multimer's, without such variants"),
        "disable-cluster-profile",
        "calc-extra-ptm",
        "no-use-probs-extra",
    ),
    *_flags(
        COLABFOLD,
        "value",
        "--templates",
        unsupported(_TEMPLATE_TABLE),
        "pdb-hit-file",
        "local-pdb-path",
    ),
    *_flags(COLABFOLD, "switch", "--dropout", same("dropout", lambda value: value not in _NO), "use-dropout"),
    *_flags(
        COLABFOLD,
        "switch",
        "helixfold features",
        unsupported("`helixfold features` makes alignments and features and predicts nothing"),
        "msa-only",
    ),
    *_flags(COLABFOLD, "switch", "not there", unsupported("inputs of AlphaFold 3 are not written"), "af3-json"),
    *_flags(
        COLABFOLD,
        "value",
        "fixed",
        unsupported(_PROTOCOL),
        "relax-max-iterations",
        "relax-tolerance",
        "relax-stiffness",
        "relax-max-outer-iterations",
    ),
    *_flags(ALPHAFOLD, "value", "files, with commas between; headers name targets", inputs, "fasta_paths"),
    *_flags(ALPHAFOLD, "value", "--output", same("output", Path), "output_dir"),
    *_flags(ALPHAFOLD, "value", "--databases, and --weights if it has params/", data_directory, "data_dir"),
    *_flags(ALPHAFOLD, "value", "--preset", same("preset", one_of(*PREDICTION_PRESETS)), "model_preset"),
    *_flags(
        ALPHAFOLD,
        "value",
        "--models, with commas between",
        same("models", lambda value: tuple(value.split(","))),
        "model_names",
    ),
    *_flags(ALPHAFOLD, "value", "--seed", same("seed", integer), "random_seed"),
    *_flags(ALPHAFOLD, "value", "--max-template-date", None, "max_template_date"),
    *_flags(ALPHAFOLD, "value", "--db-preset", None, "db_preset"),
    *_flags(ALPHAFOLD, "value", "--models-to-relax", None, "models_to_relax"),
    *_flags(
        ALPHAFOLD,
        "switch",
        "--models-to-relax all or none",
        same("models_to_relax", lambda value: "all" if value == "true" else "none"),
        "run_relax",
    ),
    *_flags(
        ALPHAFOLD, "switch", "as it is done on a machine with a GPU", gpu_relax, "use_gpu_relax", "enable_gpu_relax"
    ),
    *_flags(
        ALPHAFOLD,
        "switch",
        "--device cuda or cpu",
        same("device", lambda value: "cuda" if value == "true" else "cpu"),
        "use_gpu",
    ),
    *_flags(ALPHAFOLD, "value", "--devices", same("devices"), "gpu_devices"),
    *_flags(
        ALPHAFOLD,
        "switch",
        "--msa with the output directory, and --msa-mode files",
        remembered,
        "use_precomputed_msas",
    ),
    *_flags(
        ALPHAFOLD,
        "value",
        "--num-seeds",
        same("num_seeds", positive),
        "num_multimer_predictions_per_model",
    ),
    *_flags(
        ALPHAFOLD,
        "switch",
        "helixfold benchmark",
        unsupported("`helixfold benchmark model` measures; timings.json has the times of every prediction"),
        "benchmark",
    ),
    *_flags(
        ALPHAFOLD,
        "value",
        "--databases with a profile",
        unsupported(_PROFILE),
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
    *_flags(
        ALPHAFOLD,
        "value",
        "found on PATH",
        unsupported(_ON_PATH),
        *(f"{name}_binary_path" for name in ("jackhmmer", "hhblits", "hhsearch", "hmmsearch", "hmmbuild", "kalign")),
    ),
)

_BY_NAME = {flag.name: flag for flag in COMPATIBILITY_FLAGS if flag.convert is not None}
_VALUES = tuple(name for name, flag in _BY_NAME.items() if flag.takes == "value")
_SWITCHES = tuple(name for name, flag in _BY_NAME.items() if flag.takes == "switch")
_NEGATIVES = {f"--no{name[2:]}": name for name in _SWITCHES if _BY_NAME[name].program == ALPHAFOLD}


class GivenOption(str):
    """The value of an option of another program, true or false for a switch, with the `name` that it was given by."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, value: str) -> Self:
        """Return the option of this name with this value."""
        given = super().__new__(cls, value)
        given.name = name
        return given


def _collect(_: Any, tokens: Sequence[Token]) -> tuple[GivenOption, ...]:
    """Return each option that was given."""
    return tuple(
        GivenOption(
            str(token.keyword),
            str(token.implicit_value).lower() if token.implicit_value in (True, False) else token.value,
        )
        for token in tokens
    )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CompatibilityOptions:
    """Options of other programs. Those that are given are stored as `GivenOption`, switches too."""

    values: Annotated[
        tuple[str, ...], Parameter(name=_VALUES, converter=_collect, consume_multiple=False, show=False)
    ] = ()
    switches: Annotated[
        tuple[bool, ...], Parameter(name=_SWITCHES, negative=tuple(_NEGATIVES), converter=_collect, show=False)
    ] = ()
    other_names: Annotated[bool, Parameter(group=Group.create_ordered("Options of other programs"))] = False
    """List the options of ColabFold and AlphaFold that are understood, too."""


def resolve(options: PredictOptions, others: CompatibilityOptions) -> PredictOptions:
    """Return our options with the options of other programs applied to them.

    Remarks about an option are printed to stderr. Raise `InputError` for an option that cannot be followed.
    """
    given: Any = (*others.values, *others.switches)
    ours = SimpleNamespace(**vars(options))
    ours.defaults, ours.others = PredictOptions(), {_known(option.name): str(option) for option in given}
    for option in given:
        convert = _BY_NAME[_known(option.name)].convert
        assert convert is not None
        try:
            remark = convert(ours, str(option))
        except (UnsupportedError, ValueError) as error:
            raise InputError(f"{option.name}: {error}") from None
        if remark is not None:
            print(f"helixfold: {option.name}: {remark}", file=sys.stderr)
    models(ours)
    precomputed_alignments(ours)
    return replace(options, **{each.name: getattr(ours, each.name) for each in fields(options)})


def _known(name: str) -> str:
    """Return the name of an option in the table; on the command line, hyphens and underscores are equal."""
    names = {known.replace("_", "-"): known for known in (*_BY_NAME, *_NEGATIVES)}
    known = name if name in _BY_NAME or name in _NEGATIVES else names[name.replace("_", "-")]
    return _NEGATIVES.get(known, known)


def listing() -> Iterator[str]:
    """Yield the lines of a table of all options of other programs and what corresponds to them."""
    for program in (COLABFOLD, ALPHAFOLD):
        yield f"{program}'s options, and what they are here:"
        flags = [flag for flag in COMPATIBILITY_FLAGS if flag.program == program]
        width = max(len(flag.name) for flag in flags)
        yield from (f"  {flag.name:{width}}  {flag.equivalent}" for flag in flags)
