"""Options of the commands that make features and predict: where to search, which devices, how much memory."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, get_args

from platformdirs import user_cache_path

from data_pipeline.errors import InputError, printable
from data_pipeline.pipeline import Target
from data_pipeline.search.database import DatabaseProfile
from data_pipeline.search.plan import PACKAGES, SearchPlan, plan_searches
from data_pipeline.search.process import find_program
from data_pipeline.search.profile import read_profile, sequence_databases
from data_pipeline.search.server import PUBLIC_SERVER, Mode, ServerOptions
from helixfold.planning.memory import MemoryOptions
from helixfold.planning.prediction import EXECUTORS
from helixfold.predict.relaxation import ToRelax
from helixfold.predict.sizes import memory_size, positive

OPTIONS = ("msa", "templates", "msa_mode", "databases", "db_preset", "database", "msa_server", "max_template_date")
AUTO, DATABASES, SERVER, SINGLE_SEQUENCE = "auto", "databases", "server", "single_sequence"
# ColabFold's names, and the server's word for each.
_SERVER_MODES: dict[str, Mode] = {SERVER: "env", "mmseqs2_uniref_env": "env", "mmseqs2_uniref": "all"}
MSA_MODES = (AUTO, DATABASES, *_SERVER_MODES, SINGLE_SEQUENCE)
DB_PRESETS = ("full_dbs", "reduced_dbs")
NO_TEMPLATE_TABLE = "others come from the [templates] of a profile, or from AlphaFold's directory (--databases)"


def add_search_options(parser: argparse.ArgumentParser) -> None:
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


def add_memory_options(parser: argparse.ArgumentParser) -> None:
    """The group of options that say how much memory a run may take."""
    group = parser.add_argument_group("in how much memory")
    group.add_argument(
        "--executor",
        choices=(AUTO, *EXECUTORS),
        default=AUTO,
        help="whole is for short chains, slabs take the memory of two pair tensors, spilled keeps these on disk (of a "
        "GPU: in the host's memory); auto takes the first that fits (%(default)s)",
    )
    group.add_argument(
        "--memory",
        type=memory_size,
        metavar="SIZE",
        help="of a process to plan for, such as 8GiB (what is free on its device)",
    )
    group.add_argument(
        "--spill-directory", type=Path, metavar="DIR", help="on a disk, for what is spilled (the target's directory)"
    )
    group.add_argument(
        "--max-msa-rows",
        type=positive,
        metavar="N",
        help="of the alignment, drawn as clusters (as many as the model was trained with)",
    )
    group.add_argument(
        "--max-extra-rows",
        type=positive,
        metavar="N",
        help="of the alignment, beside the clusters (as many as the model was trained with)",
    )


def memory_options(options: argparse.Namespace) -> MemoryOptions:
    """What that group was given."""
    return MemoryOptions(
        executor=options.executor,
        memory=options.memory,
        spill_directory=options.spill_directory,
        max_msa_rows=options.max_msa_rows,
        max_extra_rows=options.max_extra_rows,
    )


def add_device_options(group: "argparse._ArgumentGroup") -> None:
    """The options that say where targets are folded."""
    group.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps (%(default)s)")
    group.add_argument(
        "--devices",
        metavar="LIST",
        help="several GPUs of this machine, by number (0,1,3) or all; with --device cpu, how many processes. Each "
        "folds the next target when it is free",
    )
    group.add_argument(
        "--ranks-per-target",
        type=positive,
        default=1,
        metavar="N",
        help="processes that fold one target together, each with a part of its memory (%(default)s)",
    )


def add_relaxation_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--models-to-relax",
        choices=get_args(ToRelax),
        help="which predictions are relaxed with OpenMM (best; none if OpenMM is not installed, and of untrained "
        "parameters and the demonstration model)",
    )


def calendar_date(text: str) -> date:
    """A day given on the command line."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no date; write year-month-day, such as 2021-11-01") from error
