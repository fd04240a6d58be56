"""Plan the searches of a command from its options and the configuration files."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from data_pipeline.features.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.io.addresses import without_password
from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.processors import available_processors
from data_pipeline.io.site_configuration import site_configuration
from data_pipeline.io.user_cache import can_be_written, search_cache
from data_pipeline.search.alignment_server import PUBLIC_SERVER, Mode, ServerOptions
from data_pipeline.search.database import DatabaseProfile, SearchedDatabase
from data_pipeline.search.database_profile import profile_from_fasta, read_database_profile
from data_pipeline.search.plan import SearchPlan, TemplateStep, plan_searches
from data_pipeline.search.process import PACKAGES, find_program
from helixfold.apps.options import NO_TEMPLATE_TABLE, SearchOptions
from helixfold.folding.provenance import RecordedSearch, SearchPurpose
from helixfold.runtime.options import changed_options
from helixfold.runtime.standard_streams import print_note

# Values of --msa-mode that use a server (ColabFold's names), and the corresponding modes of the server.
_ENVIRONMENTAL_PAIRS_MODE = "mmseqs2_uniref_env_envpair"
_SERVER_MODES: dict[str, Mode] = {
    "server": "env",
    "mmseqs2_uniref_env": "env",
    "mmseqs2_uniref": "all",
    _ENVIRONMENTAL_PAIRS_MODE: "env",
}
_ADVICE_WITHOUT_SERVER = (
    "without it, pass --msa FILE or --database FASTA, or fold the sequence alone with --msa-mode single_sequence"
)
_EXCLUDED_OPTIONS = {
    "single_sequence": ("--msa", "--databases", "--database", "--msa-server"),
    "databases": ("--msa-server",),
    "files": ("--database", "--msa-server"),
}


# Options that name a source of alignments, or targets that have them.
_SOURCE_OPTIONS = frozenset(("--msa", "--databases", "--database", "--msa-server", "--features"))
Options = TypeVar("Options", bound=SearchOptions)


def with_site_sources(options: Options, targets: Sequence[AnyTarget] = (), *, announce: bool = True) -> Options:
    """Return the options with the databases or the MMseqs2 server of a configuration file, if they name no source.

    They are used if --msa-mode is auto, no option names a source and no target has an alignment; databases take
    precedence over a server. They are also used if the options request databases or a server without naming them. With
    `announce`, the source and its configuration file are printed. Complete options are returned unchanged.
    """
    site, names, mode = site_configuration(), set(changed_options(options)), options.msa_mode
    asks_server = mode in _SERVER_MODES or options.msa_server is True
    asks_databases = mode == "databases" and not names & {"--databases", "--database"}
    is_open = mode == "auto" and not names & _SOURCE_OPTIONS
    if site.databases is not None and (asks_databases or (is_open and not asks_server)):
        key, option, value = "databases", "--databases", str(site.databases)
        changed = replace(options, databases=site.databases)
    elif site.msa_server is not None and not isinstance(options.msa_server, str) and (asks_server or is_open):
        key, option, value = "msa_server", "--msa-server", without_password(site.msa_server)
        changed = replace(options, msa_server=site.msa_server)
    else:
        return options
    source_text = f"{key.replace('msa_', 'MSA ')} of {site.sources[key]}"
    with_alignment = [target.name for target in targets if _has_alignments(target)]
    if is_open and with_alignment:
        if announce and len(with_alignment) < len(targets):
            reason = f"'{printable(with_alignment[0])}' has its own alignment; pass {option} to search for all targets"
            print_note(f"{source_text}: not searched, because {reason}")
        return options
    if announce:
        print_note(f"{source_text}: {printable(value)}")
    return changed


def profile_of(options: SearchOptions) -> DatabaseProfile:
    """Return the profile of the databases that the options name, which may be empty.

    Raise `InputError` for contradictory options and for databases that cannot be used.
    """
    if options.databases is not None and options.database:
        raise InputError("--databases and --database cannot be combined; put all databases into one profile")
    is_reduced = options.db_preset == "reduced_dbs"
    if is_reduced and (options.databases is None or options.databases.is_file()):
        raise InputError("--db-preset needs a directory in AlphaFold's layout; pass --databases DIR")
    if options.databases is not None:
        programs = {name for name in PACKAGES if find_program(name) is not None}
        return read_database_profile(options.databases, programs, reduced=is_reduced)
    return profile_from_fasta(options.database)


def plan_of(options: SearchOptions, *, announce: bool = True, dry_run: bool = False) -> SearchPlan:
    """Return the plan of the searches for these options.

    With `announce`, print which databases are not searched, and to which server sequences are sent (in a `dry_run`,
    would be sent); only one of several processes should do so. Raise `InputError` for contradictory options.
    """
    url = server_of(options)
    if options.templates == () and url is None:
        raise InputError(
            "--templates alone takes templates from an MMseqs2 server: pass --msa-server too, or files or directories "
            f"of structures; {NO_TEMPLATE_TABLE}"
        )
    profile = profile_of(options)
    server = None
    if url is not None:
        for name, seconds in (("timeout", options.msa_server_timeout), ("wait", options.msa_server_wait)):
            if not 0 < seconds < math.inf:
                raise InputError(f"--msa-server-{name} must be a number of seconds above 0, got {seconds:g}")
        server = ServerOptions(
            url=url,
            mode=_SERVER_MODES.get(options.msa_mode, "env"),
            pair_strategy=options.pair_strategy,
            pair_environmental=options.msa_mode == _ENVIRONMENTAL_PAIRS_MODE,
            timeout=options.msa_server_timeout,
            max_wait=options.msa_server_wait,
            instead=_ADVICE_WITHOUT_SERVER,
        )
    server_name = "" if url is None else printable(without_password(url))
    server_note = [f"sequences {'would be' if dry_run else 'are'} sent to {server_name}"] if server_name else []
    for note in [*profile.notes, *server_note] if announce else []:
        print_note(note)
    cache = options.search_cache or search_cache()
    makes_files = options.templates == () or any(each.tool in ("colabfold", "mmseqs") for each in profile.alignments)
    if announce and makes_files and cache is not None and not can_be_written(cache):
        print_note(f"{cache} is not writable, so this run stores no searches there (--search-cache)")
    plan = plan_searches(
        profile,
        cpus=options.threads or available_processors(),
        cache=cache,
        server=server,
        report=print_note,
        latest_template=options.max_template_date,
        with_server_templates=options.templates == (),
    )
    return replace(plan, alignments=(), pairing=None, uniprot=None) if options.msa_mode == "files" else plan


def print_complex_notes(options: SearchOptions, targets: Sequence[AnyTarget]) -> None:
    """Print notes about missing databases for complexes, if one of the targets is a complex of different chains."""
    options = with_site_sources(options, targets, announce=False)
    if server_of(options) is None and any(
        isinstance(target, ComplexInput) and len(target.target.entities) > 1 for target in targets
    ):
        for note in profile_of(options).complex_notes:
            print_note(note)


def server_of(options: SearchOptions) -> str | None:
    """Return the URL of the MMseqs2 server to use, or None.

    Raise `InputError` for options that contradict --msa-mode.
    """
    mode, names = options.msa_mode, changed_options(options)
    for name in _EXCLUDED_OPTIONS.get(mode, ("--databases", "--database") if mode in _SERVER_MODES else ()):
        if name in names:
            raise InputError(
                f"--msa-mode {mode} and {name} cannot be combined; leave one of them out "
                "(--msa-mode auto uses all sources)"
            )
    if mode == "databases" and not {"--databases", "--database"} & set(names):
        raise InputError(
            "--msa-mode databases needs databases; pass --databases or --database, or set databases in a "
            "configuration file"
        )
    if isinstance(options.msa_server, str):
        return options.msa_server
    return PUBLIC_SERVER if options.msa_server or mode in _SERVER_MODES else None


def selected_alignments(
    targets: Sequence[AnyTarget], options: SearchOptions, *, announce: bool = True
) -> list[AnyTarget]:
    """Return the targets, without their alignments if --msa-mode is single_sequence.

    Raise `InputError` if --msa-mode is files and a target has no alignment.
    """
    names_without = [each.name for each in targets if not _has_alignments(each)]
    if options.msa_mode == "files" and names_without:
        names = ", ".join(f"'{printable(name)}'" for name in names_without[:5]) + ", ..." * (len(names_without) > 5)
        raise InputError(f"--msa-mode files needs an alignment for each target; none was found for {names}; pass --msa")
    if options.msa_mode != "single_sequence":
        return list(targets)
    unused = [target.name for target in targets if target.alignments]
    if unused and announce:
        print_note(f"the alignments of {', '.join(unused)} are not read because of --msa-mode single_sequence")
    return [
        replace(target, files=(), a3m=None) if isinstance(target, ComplexInput) else replace(target, alignments=())
        for target in targets
    ]


def _has_alignments(target: AnyTarget) -> bool:
    """Return whether a target comes with alignments."""
    return bool(target.alignments or (isinstance(target, ComplexInput) and target.paired_alignments))


def search_identities(plan: SearchPlan) -> tuple[str, ...]:
    """Return a line for each search for alignments and templates of a plan, with everything that determines its result.

    Searches for paired rows of complexes are not included.
    """
    steps = [step.tool.identity() for step in plan.alignments]
    if plan.templates is not None:
        steps.append(_template_identity(plan.templates))
    return tuple(steps)


def recorded_searches(target: AnyTarget, plan: SearchPlan) -> tuple[RecordedSearch, ...]:
    """Return the searches of a plan that a target needs, in the form of its results' provenance."""
    pair_step = None
    if isinstance(target, ComplexInput):
        needed = target.needed(plan)
        pair_step, plan = needed.pairing or needed.uniprot, needed.of_chains()
    steps: list[tuple[SearchPurpose, str, tuple[SearchedDatabase, ...]]] = [
        ("alignment", step.tool.identity(), step.databases) for step in plan.alignments
    ]
    if pair_step is not None:
        steps.append(("pairs", pair_step.tool.identity(), pair_step.databases))
    if plan.templates is not None and not target.templates:
        steps.append(("templates", _template_identity(plan.templates), plan.templates.databases))
    return tuple(RecordedSearch(purpose=purpose, search=line, databases=of) for purpose, line, of in steps)


def _template_identity(step: TemplateStep) -> str:
    """Return a line with everything that determines the result of a template search."""
    latest = step.options.latest_release
    return step.tool.identity() + (f" until {latest.isoformat()}" if latest else "")
