"""Options of every command that turns sequences into features: where relatives and templates are searched."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from data_pipeline.arrays import read_npz
from data_pipeline.errors import InputError, printable
from data_pipeline.features.schema import Features
from data_pipeline.files import replacing
from data_pipeline.parse.fasta import check_name
from data_pipeline.pipeline import PreparedTarget, Target, prepare, search_ahead
from data_pipeline.search.database import DatabaseProfile
from data_pipeline.search.plan import PACKAGES, SearchPlan, plan_searches
from data_pipeline.search.process import find_program
from data_pipeline.search.profile import read_profile, sequence_databases
from data_pipeline.search.server import PUBLIC_SERVER, Mode, ServerOptions
from data_pipeline.templates.result import TemplateResult

OPTIONS = ("msa", "templates", "msa_mode", "databases", "db_preset", "database", "msa_server", "max_template_date")
AUTO, DATABASES, SERVER, SINGLE_SEQUENCE = "auto", "databases", "server", "single_sequence"
# ColabFold's names, and the server's word for each.
_SERVER_MODES: dict[str, Mode] = {SERVER: "env", "mmseqs2_uniref_env": "env", "mmseqs2_uniref": "all"}
MSA_MODES = (AUTO, DATABASES, *_SERVER_MODES, SINGLE_SEQUENCE)
DB_PRESETS = ("full_dbs", "reduced_dbs")
NO_TEMPLATE_TABLE = "others come from the [templates] of a profile, or from AlphaFold's directory (--databases)"
FEATURES_FILE, TEMPLATES_FILE, RESULTS_DIRECTORY = "features.npz", "templates.json", "msas"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The group of options that say what a target's features are made from."""
    group = parser.add_argument_group("alignments and templates (nothing is searched unless you say what)")
    group.add_argument(
        "--msa-mode",
        choices=MSA_MODES,
        default=AUTO,
        metavar="MODE",
        help="auto: all that is given below; databases or server: only these; single_sequence: no alignment at all; "
        "mmseqs2_uniref_env and mmseqs2_uniref: a server with and without environmental sequences (%(default)s)",
    )
    group.add_argument(
        "--msa",
        nargs="+",
        type=Path,
        default=[],
        metavar="PATH",
        help="alignments (a3m, Stockholm, ...) of the one target, or a directory with <name>.a3m for each",
    )
    group.add_argument(
        "--templates",
        nargs="*",
        action=_Templates,
        type=Path,
        default=[],
        metavar="PATH",
        help="your own mmCIF or PDB files, or directories of them; they take the place of a template search",
    )
    group.add_argument(
        "--databases",
        type=Path,
        metavar="PATH",
        help="profile of databases (TOML), or the directory that AlphaFold's download script filled",
    )
    group.add_argument(
        "--db-preset",
        choices=DB_PRESETS,
        default=DB_PRESETS[0],
        help="of AlphaFold's directory: with BFD and UniRef30, or with small_bfd instead (%(default)s)",
    )
    group.add_argument(
        "--database", nargs="+", type=Path, default=[], metavar="FASTA", help="sequences to search with jackhmmer"
    )
    group.add_argument(
        "--msa-server",
        nargs="?",
        const=PUBLIC_SERVER,
        metavar="URL",
        help=f"send the sequences to an MMseqs2 server (without URL: {PUBLIC_SERVER}, a shared public resource)",
    )
    group.add_argument(
        "--max-template-date",
        type=calendar_date,
        metavar="DATE",
        help="leave out templates released after this day (2021-11-01)",
    )
    group.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, metavar="N", help="of each search (all: %(default)s)"
    )


class _Templates(argparse.Action):
    """ColabFold's option of this name is a switch: who gives no file is told where templates come from."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        if not values:
            parser.error(f"--templates needs files or directories of structures; {NO_TEMPLATE_TABLE}")
        setattr(namespace, self.dest, values)


def refuse(options: argparse.Namespace, names: Sequence[str], problem: str) -> None:
    """Say that an option that was given would do nothing; `options.defaults` are the parser's."""
    for name in names:
        if getattr(options, name) != options.defaults[name]:
            raise InputError(f"--{name.replace('_', '-')} {problem}")


def profile_of(options: argparse.Namespace) -> DatabaseProfile:
    """The databases that the options name; none if they name none."""
    if options.databases is not None and options.database:
        raise InputError("--databases and --database exclude each other; put all databases into one profile")
    reduced = getattr(options, "db_preset", None) == "reduced_dbs"
    if reduced and (options.databases is None or not options.databases.is_dir()):
        raise InputError("--db-preset is for databases as AlphaFold lays them out; give their --databases DIR")
    if options.databases is not None:
        programs = {name for name in PACKAGES if find_program(name) is not None}
        return read_profile(options.databases, programs, reduced=reduced)
    return sequence_databases(options.database)


def plan_of(options: argparse.Namespace, *, tells: bool = True) -> SearchPlan:
    """The searches that the options ask for.

    One process of several `tells` on the screen which databases are left out, and where sequences are sent.
    """
    if options.threads < 1:
        raise InputError(f"--threads must be at least 1, got {options.threads}")
    url = _server_of(options)
    profile = profile_of(options)
    mode = _SERVER_MODES.get(options.msa_mode, "env")
    server = None if url is None else ServerOptions(url=url, mode=mode)
    sending = [] if url is None else [f"sequences are sent to {printable(url)}"]
    for note in [*profile.notes, *sending] if tells else []:
        print(f"helixfold: {note}", file=sys.stderr)
    return plan_searches(
        profile,
        cpus=options.threads,
        cache=user_cache_path("helixfold") / "databases",
        server=server,
        latest_template=options.max_template_date,
    )


def _server_of(options: argparse.Namespace) -> str | None:
    """The server that is to be asked, if any, once it is certain that the mode and what is given agree."""
    mode, given = options.msa_mode, {name for name in OPTIONS if getattr(options, name) != options.defaults[name]}
    excluded: dict[str, tuple[str, ...]] = {
        SINGLE_SEQUENCE: ("msa", "databases", "database", "msa_server"),
        DATABASES: ("msa_server",),
    }
    for name in excluded.get(mode, ("databases", "database") if mode in _SERVER_MODES else ()):
        if name in given:
            raise InputError(
                f"--msa-mode {mode} and --{name.replace('_', '-')} exclude each other; leave one of them out "
                f"(--msa-mode {AUTO} takes all that is given)"
            )
    if mode == DATABASES and not given & {"databases", "database"}:
        raise InputError(f"--msa-mode {DATABASES} needs to know them; give --databases or --database")
    return options.msa_server or (PUBLIC_SERVER if mode in _SERVER_MODES else None)


def as_asked(targets: Sequence[Target], options: argparse.Namespace, *, tells: bool = True) -> list[Target]:
    """The targets as they are to be read: without their alignments, if single sequences are asked for."""
    if options.msa_mode != SINGLE_SEQUENCE:
        return list(targets)
    left_out = [target.name for target in targets if target.alignments]
    if left_out and tells:
        print(f"helixfold: the alignments of {', '.join(left_out)} are not read, for --msa-mode", file=sys.stderr)
    return [replace(target, alignments=()) for target in targets]


def search_for_all(targets: Sequence[Target], plan: SearchPlan, output: Path) -> None:
    """Make the searches that serve many targets at once; what they are goes to the screen, as they may take long."""
    if targets and plan.alignments:
        searches = ", ".join(step.result_file for step in plan.alignments)
        print(f"helixfold: searching for {len(targets)} targets: {searches}", file=sys.stderr)
    search_ahead(targets, plan, lambda target: output / target.name / RESULTS_DIRECTORY)


def prepare_in(directory: Path, target: Target, plan: SearchPlan) -> PreparedTarget:
    """A target's features, written to its directory with the results of its searches and the fate of every hit."""
    prepared = prepare(target, plan, directory / RESULTS_DIRECTORY)
    directory.mkdir(parents=True, exist_ok=True)
    prepared.features.save(directory / FEATURES_FILE)
    if prepared.templates is not None:
        with replacing(directory / TEMPLATES_FILE) as temporary:
            temporary.write_text(json.dumps(template_report(prepared.templates), indent=2) + "\n")
    return prepared


def check_earlier(output: Path, sequences: Mapping[str, str]) -> None:
    """Refuse an output directory that holds other proteins of these names, or something else than directories."""
    for name, sequence in sequences.items():
        directory = output / name
        if directory.is_symlink():
            # What is written there would leave the output directory.
            problem = "is a link to another place; put the directory itself here, or choose another --output"
            raise InputError.at(directory, problem)
        if os.path.exists(directory) and not os.path.isdir(directory):
            raise InputError.at(directory, "is not a directory, and a target's files go there; choose another --output")
        earlier = directory / FEATURES_FILE
        if earlier.is_file() and _sequence_of(earlier) not in (None, sequence):
            raise InputError(
                f"{earlier.parent} holds another protein of the name '{name}'; choose another --output directory"
            )


def _sequence_of(path: Path) -> str | None:
    """The protein of earlier features; None if they are damaged, and so are made again."""
    try:
        found = read_npz(path, names=("sequence",)).get("sequence")
    except InputError:
        return None
    return str(found) if found is not None and found.ndim == 0 and found.dtype.kind == "U" else None


def check_output(output: Path, sequences: Mapping[str, str]) -> None:
    """Make the output directory, and refuse one that cannot be written or holds other proteins of these names."""
    check_earlier(output, sequences)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is a link to nothing" if output.is_symlink() and not os.path.exists(output) else error.strerror
        raise InputError.at(
            output, f"cannot be used as output directory ({reason}); choose another with --output"
        ) from error
    if not os.access(output, os.W_OK):
        raise InputError.at(output, "cannot be written; choose another --output directory")


def template_report(result: TemplateResult) -> dict[str, list[dict[str, object]]]:
    """Which templates the model reads, and why every other hit is none."""
    return {
        "used": [
            {
                "name": template.name,
                "rank": template.rank,
                "release_date": None if template.release_date is None else template.release_date.isoformat(),
                "aligned_residues": template.aligned,
                "identity": round(template.identity, 3),
                "note": template.note,
            }
            for template in result.used
        ],
        "rejected": [
            {"name": hit.name, "rank": hit.rank, "reason": hit.reason.value, "detail": hit.sentence}
            for hit in result.rejected
        ],
    }


def summary(prepared: PreparedTarget) -> str:
    """One line for the screen: how deep the alignment is and where it comes from."""
    sources = ", ".join(f"{rows:,} from {Path(source).name}" for source, rows in prepared.alignment_rows.items())
    rows = len(prepared.features.msa)
    line = f"{rows:,} row{'' if rows == 1 else 's'} in the alignment" + (f" ({sources})" if sources else "")
    if prepared.templates is None:
        return line
    used, rejected = prepared.templates.used, prepared.templates.rejected
    names = f" ({', '.join(template.name for template in used)})" if used else ""
    return f"{line}; {len(used)} templates{names}, {len(rejected)} hits not used, see {TEMPLATES_FILE}"


def read_features(paths: Sequence[Path]) -> list[tuple[Path, Features]]:
    """Features made before: `features.npz` files, or directories with one in each target's directory."""
    found: list[tuple[Path, Features]] = []
    for path in paths:
        files = [path]
        if os.path.isdir(path):
            files = sorted({*path.glob(f"*/{FEATURES_FILE}"), *path.glob(FEATURES_FILE)})
            if not files:
                raise InputError.at(path, f"there is no {FEATURES_FILE} here or in a directory below")
        found += [(file, Features.load(file)) for file in files]
    for file, features in found:
        # The name becomes a directory, and whoever made the file chose it.
        if (problem := check_name(features.domain_name)) is not None:
            raise InputError.at(file, problem, record=features.domain_name)
    return found


def calendar_date(text: str) -> date:
    """A day given on the command line."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no date; write year-month-day, such as 2021-11-01") from error
