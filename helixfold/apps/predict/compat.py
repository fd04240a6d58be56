"""Convert options of ColabFold's and AlphaFold's command lines to helixfold's options.

Options with the same meaning and values are aliases (`Traits.colabfold`, `Traits.alphafold`). The options here need a
conversion of values, or are not supported and raise an error with advice. No option is ignored silently.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Self

from cyclopts import Group, Parameter, Token

from data_pipeline.io.errors import InputError, did_you_mean, printable
from helixfold.apps.options import NO_TEMPLATE_TABLE, PredictOptions
from helixfold.apps.presets import MONOMER, MONOMER_PTM, MULTIMER
from helixfold.runtime.options import RepresentationName, integer, traits_of
from helixfold.runtime.standard_streams import print_note

_FALSE_VALUES = ("false", "0", "f", "no")
# Function that changes helixfold's options (attributes of the namespace) by the value of another program's option, and
# returns a note for the user or None. Switches have the values true and false. The text of a `ValueError` is advice.
Conversion = Callable[[SimpleNamespace, str], str | None]
# By the other program's option: helixfold's option for the help, and the conversion, or the advice of an error.
Table = dict[str, tuple[str, Conversion | str]]


def put(options: SimpleNamespace, ours: str, value: Any) -> None:
    """Set the option `ours` of helixfold. Raise `ValueError` if the user has set it to another value."""
    if getattr(options, ours) not in (getattr(options.defaults, ours), value):
        raise ValueError(f"is the same as --{ours.replace('_', '-')}, which has another value")
    setattr(options, ours, value)


def same(ours: str, read: Callable[[str], Any]) -> Conversion:
    """Return a conversion that sets the option `ours` of helixfold to the value, parsed by `read`."""
    return lambda options, value: put(options, ours, read(value))


def weights(options: SimpleNamespace, value: str) -> None:
    """Set --weights to a directory of parameters, or to the directory `params` in it if there is one."""
    directory = Path(value)
    put(options, "weights", directory / "params" if (directory / "params").is_dir() else directory)


def data_directory(options: SimpleNamespace, value: str) -> None:
    """Set --databases to a directory in the layout of AlphaFold's download script, and --weights to its parameters.

    Weights that are already set are kept. With --features, --databases is not set. Raise `InputError` if the directory
    does not exist.
    """
    if not Path(value).is_dir():
        raise InputError.at(value, "no such directory")
    if (Path(value) / "params").is_dir() and options.weights is None:
        weights(options, value)
    if not options.features:
        put(options, "databases", Path(value))


def inputs(options: SimpleNamespace, value: str) -> None:
    """Add the input files in a list separated by commas."""
    options.inputs = (*options.inputs, *(Path(path) for path in value.split(",") if path))


def rows(options: SimpleNamespace, value: str) -> None:
    """Set --max-msa-rows and --max-extra-rows to the two numbers of ColabFold's --max-msa."""
    match = re.fullmatch(r"([1-9][0-9]{0,8}):([1-9][0-9]{0,8})", value)
    if match is None:
        raise ValueError(f"must be max-seq:max-extra-seq, such as 512:1024, got '{printable(value)}'")
    put(options, "max_msa_rows", int(match[1]))
    put(options, "max_extra_rows", int(match[2]))


def rank(_: SimpleNamespace, value: str) -> None:
    """Accept ranking by pLDDT, or by ipTM and pTM for complexes. Raise `ValueError` for any other ranking."""
    if value not in ("auto", "plddt", "multimer"):
        raise ValueError(
            "predictions are ranked by mean pLDDT, and predictions of complexes by ipTM and pTM; "
            "confidence_<model>.json has the pTM of each"
        )


def amber(options: SimpleNamespace, _: str) -> None:
    """Convert ColabFold's --amber: set --models-to-relax to all, unless --num-relax has a value other than 0."""
    if options.others.get("--num-relax", "0") == "0":
        put(options, "models_to_relax", "all")


def num_relax(options: SimpleNamespace, value: str) -> None:
    """Convert ColabFold's --num-relax: set --models-to-relax to best for 1, or to none for 0 without --amber.

    With --amber, 0 changes nothing. Raise `ValueError` for larger numbers.
    """
    count = integer(value)
    if count > 1:
        raise ValueError("only the best prediction or all can be relaxed; pass --models-to-relax best or all")
    if count == 1:
        put(options, "models_to_relax", "best")
    elif "--amber" not in options.others:
        put(options, "models_to_relax", "none")


def gpu_relax(_: SimpleNamespace, value: str) -> None:
    """Accept relaxation on the GPU. Raise `ValueError` if it is switched off on a machine with a GPU."""
    from torch.cuda import is_available  # noqa: PLC0415 (torch takes long to import, and this option is rare)

    if value == "false" and is_available():
        raise ValueError("structures are relaxed on the GPU if there is one; hide it with CUDA_VISIBLE_DEVICES=")


def representation(name: RepresentationName) -> Conversion:
    """Return a conversion that adds the representation `name` to --save-representations if the switch is on."""

    def convert(options: SimpleNamespace, value: str) -> None:
        """Add the representation unless the switch is false."""
        if value not in _FALSE_VALUES:
            options.save_representations = tuple(dict.fromkeys((*options.save_representations, name)))

    return convert


def later(_: SimpleNamespace, __: str) -> None:
    """Do nothing: `models` and `precomputed_alignments` read these options later, together with others."""


def precomputed_alignments(options: SimpleNamespace) -> None:
    """Set --msa to the output directory and --msa-mode to files if AlphaFold's --use_precomputed_msas is on.

    Raise `InputError` for any other --msa-mode, and if the output directory does not exist.
    """
    if options.others.get("--use_precomputed_msas", "false") in _FALSE_VALUES:
        return
    if options.msa_mode not in ("auto", "files"):
        raise InputError(
            f"--use_precomputed_msas sets --msa-mode files and cannot be combined with --msa-mode {options.msa_mode}"
        )
    directory = options.output
    if len(options.inputs) == 1 and (named_directory := directory / options.inputs[0].stem).is_dir():
        directory = named_directory  # AlphaFold names the directory after the FASTA file, not after its record
    if not directory.is_dir():
        problem = "no such output directory, from which --use_precomputed_msas reads alignments; leave out this option"
        raise InputError.at(directory, problem)
    options.msa, options.msa_mode = (*options.msa, directory), "files"


def models(options: SimpleNamespace) -> None:
    """Set --models by ColabFold's --model-type, --num-models and --model-order together; do nothing without them.

    Raise `InputError` if one of them has an invalid value, or in combination with --models or --preset.
    """
    kind, count, order = (options.others.get(name) for name in ("--model-type", "--num-models", "--model-order"))
    if kind is None and count is None and order is None:
        return
    if options.models or options.preset:
        raise InputError("--model-type, --num-models and --model-order cannot be combined with --models or --preset")
    models_by_type = {"auto": MONOMER_PTM, "alphafold2_ptm": MONOMER_PTM, "alphafold2": MONOMER}
    releases = ("v3", "v2", "v1")
    models_by_type |= {f"alphafold2_multimer_{name}": MULTIMER[5 * index :][:5] for index, name in enumerate(releases)}
    if kind is not None and kind not in models_by_type:
        raise InputError(
            f"--model-type must be one of {', '.join(models_by_type)}, "
            f"got {printable(kind)}{did_you_mean(kind, models_by_type)}"
        )
    numbers = (order or "1,2,3,4,5").split(",")
    if not all(re.fullmatch("[1-5]", number) for number in numbers) or len(set(numbers)) < len(numbers):
        raise InputError(
            f"--model-order must be different numbers of models, such as 1,2,3,4,5; got '{printable(order or '')}'"
        )
    if count is not None and not re.fullmatch("[1-5]", count):
        raise InputError(f"--num-models must be a number from 1 to 5, got '{printable(count)}'")
    names = [models_by_type[kind or "auto"][int(number) - 1] for number in numbers]
    options.models = tuple(names[: int(count or 5)])


_NO_EFFECT_NOTE = "it has no effect, because nothing is compiled for a length"
_TEMPLATE_TABLE_ADVICE = f"pass your own structures with --templates; {NO_TEMPLATE_TABLE}"
_PROFILE_ADVICE = (
    "pass a profile of the databases (such as examples/databases.toml) or their directory with --databases"
)
_ALPHAFOLD_DATABASES = (
    "uniref90",
    "mgnify",
    "bfd",
    "small_bfd",
    "uniref30",
    "uniclust30",
    "uniprot",
    "pdb70",
    "pdb_seqres",
)
_DATABASE_OPTIONS = (
    *(f"--{name}_database_path" for name in _ALPHAFOLD_DATABASES),
    "--template_mmcif_dir",
    "--obsolete_pdbs_path",
)
_SEARCH_PROGRAMS = ("jackhmmer", "hhblits", "hhsearch", "hmmsearch", "hmmbuild", "kalign")
# Options with a value come first, then switches.
_COLABFOLD_OPTIONS: tuple[Table, Table] = (
    {
        "--model-type": ("--models (auto, alphafold2, _ptm, _multimer_v1, _v2, _v3)", later),
        "--num-models": ("--models, the first of them", later),
        "--model-order": ("--models, in this order", later),
        "--data": ("--weights", weights),
        "--max-msa": ("--max-msa-rows and --max-extra-rows", rows),
        "--num-relax": ("--models-to-relax (0 none, 1 best)", num_relax),
        "--rank": ("the default: by pLDDT, or by ipTM and pTM for complexes", rank),
        "--recompile-padding": ("no effect", lambda *_: _NO_EFFECT_NOTE),
        "--jobname-prefix": (
            "not supported; FASTA headers name targets",
            "targets are named by the first word of their headers; change it there",
        ),
        **dict.fromkeys(("--pdb-hit-file", "--local-pdb-path"), ("--templates", _TEMPLATE_TABLE_ADVICE)),
        **dict.fromkeys(
            ("--relax-max-iterations", "--relax-tolerance", "--relax-stiffness", "--relax-max-outer-iterations"),
            ("fixed", "relaxation follows AlphaFold's protocol, whose numbers are fixed"),
        ),
    },
    {
        "--amber": ("--models-to-relax all", amber),
        "--use-gpu-relax": ("the default on a machine with a GPU", gpu_relax),
        "--disable-unified-memory": ("no effect", lambda *_: _NO_EFFECT_NOTE),
        "--save-single-representations": ("--save-representations single", representation("single")),
        "--save-pair-representations": ("--save-representations pair", representation("pair")),
        "--save-all": ("not supported; --save-logits", "pickles are not written; --save-logits writes all logits"),
        **dict.fromkeys(
            ("--disable-cluster-profile", "--calc-extra-ptm", "--no-use-probs-extra"),
            (
                "as AlphaFold-Multimer does",
                "features and scores of complexes are AlphaFold-Multimer's, without such variants",
            ),
        ),
        "--msa-only": ("helixfold features", "run `helixfold features`, which only makes alignments and features"),
        "--af3-json": ("not supported", "inputs of AlphaFold 3 are not written"),
    },
)
_ALPHAFOLD_OPTIONS: tuple[Table, Table] = (
    {
        "--fasta_paths": ("files, with commas between; headers name targets", inputs),
        "--data_dir": ("--databases, and --weights if it has params/", data_directory),
        "--model_names": ("--models, with commas between", same("models", lambda value: tuple(value.split(",")))),
        **dict.fromkeys(_DATABASE_OPTIONS, ("--databases with a profile", _PROFILE_ADVICE)),
        **dict.fromkeys(
            (f"--{name}_binary_path" for name in _SEARCH_PROGRAMS),
            ("found on PATH", "programs are found on PATH; put its directory there"),
        ),
    },
    {
        "--run_relax": (
            "--models-to-relax all or none",
            same("models_to_relax", lambda value: "all" if value == "true" else "none"),
        ),
        **dict.fromkeys(("--use_gpu_relax", "--enable_gpu_relax"), ("the default on a machine with a GPU", gpu_relax)),
        "--use_gpu": ("--device cuda or cpu", same("device", lambda value: "cuda" if value == "true" else "cpu")),
        "--use_precomputed_msas": ("--msa with the output directory, and --msa-mode files", later),
        "--benchmark": (
            "helixfold benchmark",
            "`helixfold benchmark model` measures; timings.json has the times of every prediction",
        ),
    },
)
_VALUE_OPTIONS, _SWITCH_OPTIONS = (
    _COLABFOLD_OPTIONS[0] | _ALPHAFOLD_OPTIONS[0],
    _COLABFOLD_OPTIONS[1] | _ALPHAFOLD_OPTIONS[1],
)
_ALL_OPTIONS = _VALUE_OPTIONS | _SWITCH_OPTIONS
_SWITCHES_BY_NEGATIVE = {f"--no{name[2:]}": name for name in _ALPHAFOLD_OPTIONS[1]}


class OtherOption(str):
    """The value of an option of another program ("true" or "false" for a switch), with the option's `name`."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, value: str) -> Self:
        """Return the option of this name with this value."""
        option = super().__new__(cls, value)
        option.name = name
        return option


def _collect(_: Any, tokens: Sequence[Token]) -> tuple[OtherOption, ...]:
    """Return the options on the command line, in order."""
    return tuple(
        OtherOption(
            str(token.keyword),
            str(token.implicit_value).lower() if token.implicit_value in (True, False) else token.value,
        )
        for token in tokens
    )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CompatibilityOptions:
    """Options of other programs; the values of options and switches on the command line are `OtherOption`."""

    values: Annotated[
        tuple[str, ...], Parameter(name=tuple(_VALUE_OPTIONS), converter=_collect, consume_multiple=False, show=False)
    ] = ()
    switches: Annotated[
        tuple[bool, ...],
        Parameter(name=tuple(_SWITCH_OPTIONS), negative=tuple(_SWITCHES_BY_NEGATIVE), converter=_collect, show=False),
    ] = ()
    other_names: Annotated[
        bool,
        Parameter(
            group=Group.create_ordered("Options of other programs"),
            help="List the options of ColabFold and AlphaFold that are accepted, too.",
        ),
    ] = False


def resolve(options: PredictOptions, others: CompatibilityOptions) -> PredictOptions:
    """Return helixfold's options after applying the options of other programs (`others`).

    Notes about an option are printed to stderr. Raise `InputError` for an option that is not supported.
    """
    foreign: Any = (*others.values, *others.switches)
    ours = SimpleNamespace(**vars(options))
    ours.defaults, ours.others = PredictOptions(), {_name_in_table(option.name): str(option) for option in foreign}
    for option in foreign:
        _, convert = _ALL_OPTIONS[_name_in_table(option.name)]
        try:
            if isinstance(convert, str):
                if option in _FALSE_VALUES:
                    continue
                raise ValueError(convert)
            remark = convert(ours, option)
        except ValueError as error:
            raise InputError(f"{option.name}: {error}") from None
        if remark is not None:
            print_note(f"{option.name}: {remark}")
    models(ours)
    precomputed_alignments(ours)
    return replace(options, **{each.name: getattr(ours, each.name) for each in fields(options)})


def _name_in_table(name: str) -> str:
    """Return the name of an option in the table; on the command line, hyphens and underscores are equal."""
    names = {each.replace("_", "-"): each for each in (*_ALL_OPTIONS, *_SWITCHES_BY_NEGATIVE)}
    entry = name if name in _ALL_OPTIONS or name in _SWITCHES_BY_NEGATIVE else names[name.replace("_", "-")]
    return _SWITCHES_BY_NEGATIVE.get(entry, entry)


def foreign_options() -> dict[str, dict[str, str]]:
    """Return the corresponding option of helixfold for each option of ColabFold and AlphaFold, by program and name."""
    table = {
        program: {name: our_option for part in tables for name, (our_option, _) in part.items()}
        for program, tables in (("ColabFold", _COLABFOLD_OPTIONS), ("AlphaFold", _ALPHAFOLD_OPTIONS))
    }
    for ours, traits in traits_of(PredictOptions).items():
        for program, name in (("ColabFold", traits.colabfold), ("AlphaFold", traits.alphafold)):
            if name:
                table[program][name] = f"--{ours.replace('_', '-')}"
    return table


def is_unsupported(name: str) -> bool:
    """Return whether an option of another program is known but raises an error, unless it is a switch set to false."""
    return name in _ALL_OPTIONS and isinstance(_ALL_OPTIONS[name][1], str)


def listing() -> Iterator[str]:
    """Yield the lines of a table of all options of other programs with the corresponding options of helixfold."""
    for program, options in foreign_options().items():
        yield f"{program}'s options, and the corresponding options of helixfold:"
        width = max(map(len, options))
        yield from (f"  {name:{width}}  {here}" for name, here in options.items())
