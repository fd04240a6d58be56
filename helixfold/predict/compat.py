"""Define the options of ColabFold's and AlphaFold's command lines that `helixfold predict` understands.

An option that means the same as one of ours sets ours. An option that cannot be followed is refused with a sentence
that says what to do instead. None is ignored silently.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Self

from cyclopts import Group, Parameter, Token

from data_pipeline.errors import InputError
from helixfold.options import integer, number, positive
from helixfold.predict.compat.conversions import (
    Conversion,
    UnsupportedError,
    amber,
    data_directory,
    dropout,
    gpu_relax,
    inputs,
    model_preset,
    models,
    num_relax,
    overwrite,
    precomputed_alignments,
    rank,
    remembered,
    representation,
    rows,
    same,
    unsupported,
    weights,
    without_effect,
)
from helixfold.predict.options import NO_TEMPLATE_TABLE, PredictOptions

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
    *_flags(COLABFOLD, "switch", "--dropout", dropout, "use-dropout"),
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
    *_flags(ALPHAFOLD, "value", "--preset", model_preset, "model_preset"),
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
    ours = _flat(options)
    ours.defaults, ours.others = _flat(PredictOptions()), {_known(option.name): str(option) for option in given}
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
    return _grouped(ours)


def _known(name: str) -> str:
    """Return the name of an option in the table; on the command line, hyphens and underscores are equal."""
    names = {known.replace("_", "-"): known for known in (*_BY_NAME, *_NEGATIVES)}
    known = name if name in _BY_NAME or name in _NEGATIVES else names[name.replace("_", "-")]
    return _NEGATIVES.get(known, known)


def _flat(options: PredictOptions) -> SimpleNamespace:
    groups = [getattr(options, group.name) for group in fields(options) if group.name != "inputs"]
    values = {field.name: getattr(group, field.name) for group in groups for field in fields(group)}
    return SimpleNamespace(inputs=options.inputs, **values)


def _grouped(options: SimpleNamespace) -> PredictOptions:
    usual = PredictOptions()
    groups = {}
    for group in fields(usual):
        if group.name != "inputs":
            kind = type(getattr(usual, group.name))
            groups[group.name] = kind(**{field.name: getattr(options, field.name) for field in fields(kind)})
    return PredictOptions(inputs=options.inputs, **groups)


def listing() -> Iterator[str]:
    """Yield the lines of a table of all options of other programs and what corresponds to them."""
    for program in (COLABFOLD, ALPHAFOLD):
        yield f"{program}'s options, and what they are here:"
        flags = [flag for flag in COMPATIBILITY_FLAGS if flag.program == program]
        width = max(len(flag.name) for flag in flags)
        yield from (f"  {flag.name:{width}}  {flag.equivalent}" for flag in flags)
