"""What ColabFold's and AlphaFold's users type: their options, with the meaning that they have there.

An option that means the same as one of ours is that one; for one that cannot be followed, a sentence says what there is
instead. None is passed over in silence.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.errors import InputError
from helixfold.predict.conversions import (
    NO_COMPLEXES,
    Apply,
    CannotError,
    amber,
    cannot,
    data_directory,
    gpu_relax,
    inputs,
    is_yes,
    kept,
    model_preset,
    models,
    no_need,
    num_relax,
    number,
    one_of,
    overwrite,
    rank,
    rows,
    same,
    weights,
    whole,
)
from helixfold.predict.options import NO_TEMPLATE_TABLE, calendar_date
from helixfold.predict.sizes import positive

COLABFOLD, ALPHAFOLD = "ColabFold", "AlphaFold"
_VALUES: dict[str, str | int | None] = {"one": None, "none": 0, "flag": "?"}


@dataclass(frozen=True, kw_only=True)
class OtherName:
    """An option of another program: what it is here in a few words, and how it changes ours; it may return a remark."""

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
    parser.add_argument(
        "--other-names",
        action=_List,
        nargs=0,
        help="list ColabFold's and AlphaFold's options, which are understood, too",
    )


def resolve(options: argparse.Namespace) -> None:
    """Put what was given by their names under ours; what cannot be followed is an `InputError`."""
    table = {other.name: other for other in OTHER_NAMES}
    for name, value in options.others:
        try:
            remark = table[name].apply(options, value)
        except (CannotError, ValueError, argparse.ArgumentTypeError) as error:
            raise InputError(f"{name}: {error}") from None
        if remark is not None:
            print(f"helixfold: {name}: {remark}", file=sys.stderr)
    options.others = []
    models(options)


def listing() -> Iterator[str]:
    """Yield all options of other programs with what they are here, by program."""
    for program in (COLABFOLD, ALPHAFOLD):
        yield f"{program}'s options, and what they are here:"
        mine = [other for other in OTHER_NAMES if other.program == program]
        width = max(len(other.name) for other in mine)
        yield from (f"  {other.name:{width}}  {other.here}" for other in mine)


class _Collect(argparse.Action):
    """Remember the option for later, when all are known."""

    def __call__(self, _parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        given = [self.const, "false"] if self.nargs == 0 and self.const else [option_string, values or ""]
        namespace.others = [*namespace.others, (str(given[0]), str(given[1]) if given[1] else "")]


class _List(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        print("\n".join(listing()))
        parser.exit()


_PROFILE = "name the databases in a profile and give it with --databases, or their directory; README shows one"
_ON_PATH = "programs are found on PATH; put its directory there"
_PROTOCOL = "relaxation follows AlphaFold's protocol, whose numbers are fixed"
_NO_EFFECT = "nothing is compiled for a length here, so it is without effect"


def _names(program: str, takes: str, here: str, apply: Apply, *names: str) -> Sequence[OtherName]:
    return [OtherName(name=f"--{name}", program=program, here=here, apply=apply, takes=takes) for name in names]


OTHER_NAMES: tuple[OtherName, ...] = (
    *_names(COLABFOLD, "one", "--num-recycles", same("num_recycles", whole), "num-recycle"),
    *_names(COLABFOLD, "one", "--recycle-tolerance", same("recycle_tolerance", number), "recycle-early-stop-tolerance"),
    *_names(COLABFOLD, "one", "--seed", same("seed", whole), "random-seed"),
    *_names(COLABFOLD, "one", "--models (auto, alphafold2_ptm, alphafold2)", kept("other_type"), "model-type"),
    *_names(COLABFOLD, "one", "--models, the first of them", kept("other_count"), "num-models"),
    *_names(COLABFOLD, "one", "--models, in this order", kept("other_order"), "model-order"),
    *_names(COLABFOLD, "none", "--overwrite", overwrite, "overwrite-existing-results"),
    *_names(COLABFOLD, "one", "--msa-server", same("msa_server"), "host-url"),
    *_names(COLABFOLD, "one", "--templates", same("templates", lambda value: [Path(value)]), "custom-template-path"),
    *_names(COLABFOLD, "one", "--weights", weights, "data"),
    *_names(COLABFOLD, "one", "--max-msa-rows", same("max_msa_rows", positive), "max-seq"),
    *_names(COLABFOLD, "one", "--max-extra-rows", same("max_extra_rows", positive), "max-extra-seq"),
    *_names(COLABFOLD, "one", "--max-msa-rows and --max-extra-rows", rows, "max-msa"),
    *_names(COLABFOLD, "none", "--models-to-relax all", amber, "amber"),
    *_names(COLABFOLD, "one", "--models-to-relax (0 none, 1 best)", num_relax, "num-relax"),
    *_names(COLABFOLD, "none", "what is done where there is one", gpu_relax, "use-gpu-relax"),
    *_names(COLABFOLD, "one", "by pLDDT, as it is done", rank, "rank"),
    *_names(COLABFOLD, "none", "without effect", no_need(_NO_EFFECT), "disable-unified-memory"),
    *_names(COLABFOLD, "one", "without effect", no_need(_NO_EFFECT), "recompile-padding"),
    *_names(
        COLABFOLD,
        "none",
        "not there; --save-logits",
        cannot("nothing is pickled; --save-logits writes the logits of all heads"),
        "save-all",
    ),
    *_names(
        COLABFOLD,
        "none",
        "not there; notebooks show how",
        cannot("they are not written; from Python, the network's outputs have them (see the notebooks)"),
        "save-recycles",
        "save-single-representations",
        "save-pair-representations",
    ),
    *_names(
        COLABFOLD,
        "one",
        "not there; FASTA headers name targets",
        cannot("targets are named by the first word of their headers; change it there"),
        "jobname-prefix",
    ),
    *_names(COLABFOLD, "one", "not there", cannot(NO_COMPLEXES), "pair-mode", "pair-strategy"),
    *_names(
        COLABFOLD,
        "none",
        "not there",
        cannot(NO_COMPLEXES),
        "disable-cluster-profile",
        "calc-extra-ptm",
        "no-use-probs-extra",
    ),
    *_names(
        COLABFOLD,
        "one",
        "--templates",
        cannot(f"structures of your own are given with --templates; {NO_TEMPLATE_TABLE}"),
        "pdb-hit-file",
        "local-pdb-path",
    ),
    *_names(
        COLABFOLD,
        "none",
        "--num-seeds",
        cannot("dropout is for training; for other predictions, --num-seeds draws other alignments"),
        "use-dropout",
    ),
    *_names(
        COLABFOLD,
        "flag",
        "--templates",
        cannot("no structure is started from; give it as a template with --templates"),
        "initial-guess",
    ),
    *_names(
        COLABFOLD,
        "none",
        "helixfold features",
        cannot("`helixfold features` makes alignments and features and folds nothing"),
        "msa-only",
    ),
    *_names(COLABFOLD, "none", "not there", cannot("inputs of AlphaFold 3 are not written"), "af3-json"),
    *_names(
        COLABFOLD,
        "one",
        "fixed",
        cannot(_PROTOCOL),
        "relax-max-iterations",
        "relax-tolerance",
        "relax-stiffness",
        "relax-max-outer-iterations",
    ),
    *_names(ALPHAFOLD, "one", "files, with commas between; headers name targets", inputs, "fasta_paths"),
    *_names(ALPHAFOLD, "one", "--output", same("output", Path), "output_dir"),
    *_names(ALPHAFOLD, "one", "--databases, and --weights if it has params/", data_directory, "data_dir"),
    *_names(ALPHAFOLD, "one", "--preset", model_preset, "model_preset"),
    *_names(
        ALPHAFOLD,
        "one",
        "--models, with commas between",
        same("models", lambda value: value.split(",")),
        "model_names",
    ),
    *_names(ALPHAFOLD, "one", "--seed", same("seed", whole), "random_seed"),
    *_names(ALPHAFOLD, "one", "--max-template-date", same("max_template_date", calendar_date), "max_template_date"),
    *_names(
        ALPHAFOLD,
        "one",
        "--db-preset",
        same("db_preset", one_of(full_dbs="full_dbs", reduced_dbs="reduced_dbs")),
        "db_preset",
    ),
    *_names(
        ALPHAFOLD,
        "one",
        "--models-to-relax",
        same("models_to_relax", one_of(best="best", all="all", none="none")),
        "models_to_relax",
    ),
    *_names(
        ALPHAFOLD,
        "flag",
        "--models-to-relax all or none",
        same("models_to_relax", lambda value: "all" if is_yes(value) else "none"),
        "run_relax",
    ),
    *_names(ALPHAFOLD, "flag", "what is done where there is one", gpu_relax, "use_gpu_relax", "enable_gpu_relax"),
    *_names(
        ALPHAFOLD,
        "flag",
        "--device cuda or cpu",
        same("device", lambda value: "cuda" if is_yes(value) else "cpu"),
        "use_gpu",
    ),
    *_names(ALPHAFOLD, "one", "--devices", same("devices"), "gpu_devices"),
    *_names(
        ALPHAFOLD,
        "flag",
        "what is always done",
        no_need("results in msas/ are used again where they are those of the same search"),
        "use_precomputed_msas",
    ),
    *_names(
        ALPHAFOLD,
        "one",
        "--num-seeds",
        cannot(f"{NO_COMPLEXES}; --num-seeds makes several predictions by each model"),
        "num_multimer_predictions_per_model",
    ),
    *_names(
        ALPHAFOLD,
        "flag",
        "helixfold benchmark",
        cannot("`helixfold benchmark model` measures; timings.json has the times of every prediction"),
        "benchmark",
    ),
    *_names(
        ALPHAFOLD,
        "one",
        "--databases with a profile",
        cannot(_PROFILE),
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
        cannot(_ON_PATH),
        *(f"{name}_binary_path" for name in ("jackhmmer", "hhblits", "hhsearch", "hmmsearch", "hmmbuild", "kalign")),
    ),
)
