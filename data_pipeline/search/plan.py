"""Select the tools that search the databases of a profile.

`SERVER_RESULT`, `PAIRED_RESULT` and `SERVER_TEMPLATES` are names of result files.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from data_pipeline.io.errors import InputError
from data_pipeline.io.user_cache import NO_CACHE, writable_cache
from data_pipeline.search.alignment_server import AlignmentServer, ServerOptions
from data_pipeline.search.colabfold_databases import ClusterDatabase, check_sequences
from data_pipeline.search.colabfold_search import (
    ColabfoldOptions,
    ColabfoldPairing,
    ColabfoldSearch,
    ColabfoldTemplates,
    MmseqsBatch,
    SharedResults,
)
from data_pipeline.search.database import (
    AlignmentDatabase,
    DatabaseProfile,
    SearchedDatabase,
    TemplateDatabase,
    searched_databases,
)
from data_pipeline.search.hhsuite import Hhblits, HhblitsOptions, Hhsearch, HhsearchOptions
from data_pipeline.search.mmseqs import Mmseqs, MmseqsOptions
from data_pipeline.search.mmseqs_program import OLDEST_FOR_CLUSTERS, require_mmseqs
from data_pipeline.search.mmseqs_server import ServerPairing, ServerSearch, ServerTemplates
from data_pipeline.search.process import require_program
from data_pipeline.search.tool import PairingSearch, SequenceSearch, TemplateSearch
from data_pipeline.templates.filters import TemplateOptions
from data_pipeline.templates.from_files import UserTemplateOptions
from data_pipeline.templates.structure_directory import StructureDirectory, read_obsolete, read_release_dates

SERVER_RESULT, PAIRED_RESULT, SERVER_TEMPLATES = "server_hits.a3m", "paired_hits.a3m", "server_templates.m8"
_PROFILE_REQUIRED = (
    "mmseqs needs the profile of a UniRef30 search to search for templates; "
    'add [[alignments]] with tool = "colabfold", or search the templates with hmmsearch or hhsearch'
)
Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True)
class AlignmentStep:
    """One search for homologs of a target.

    `result_file` is the name of the file in which the result of a target is stored. `max_rows` limits the rows of the
    result to read, including the target. `databases` describe what is searched, for reports.
    """

    result_file: str
    tool: SequenceSearch
    max_rows: int | None  # rows of the result to read, including the target; None: all
    databases: tuple[SearchedDatabase, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PairingStep:
    """The search for paired rows of the distinct sequences of a complex; each sequence has its own result file."""

    result_file: str
    tool: PairingSearch
    databases: tuple[SearchedDatabase, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TemplateStep:
    """The search for templates of a target: the tool that finds hits, and the `source` of their structure files.

    `result_file` is the name of the file in which the hits are stored, and `options` select among the hits.
    """

    result_file: str
    tool: TemplateSearch
    source: StructureDirectory
    options: TemplateOptions
    databases: tuple[SearchedDatabase, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """All searches of a target, in the order in which the MSA rows are merged.

    `user_templates` has limits for template files of the user. Complexes of different sequences use `pairing` (a search
    that pairs rows) or `uniprot` (whose rows are paired by species). Chains of complexes use `complex_templates`
    instead of `templates`, if there is one.
    """

    alignments: tuple[AlignmentStep, ...] = ()
    templates: TemplateStep | None = None
    user_templates: UserTemplateOptions = field(default_factory=UserTemplateOptions)  # for the user's files
    pairing: PairingStep | None = None  # for heteromers
    uniprot: AlignmentStep | None = None  # for heteromers, whose rows are paired by species
    complex_templates: TemplateStep | None = None  # for chains of complexes, instead of `templates`

    def of_chains(self) -> "SearchPlan":
        """Return the searches for each chain of a complex, without the searches for paired rows.

        The template search is `complex_templates`, or else `templates`.
        """
        templates = self.complex_templates or self.templates
        return replace(self, templates=templates, pairing=None, uniprot=None, complex_templates=None)


def plan_searches(
    profile: DatabaseProfile,
    *,
    cpus: int,
    cache: Path | None,
    server: ServerOptions | None = None,
    report: Callable[[str], None] = lambda _: None,
    latest_template: date | None = None,
    with_server_templates: bool = False,
) -> SearchPlan:
    """Return the searches of a profile's databases, each with `cpus` threads, followed by the searches on a server.

    `cache` is a directory for files that a tool derives once from a database; None if the user has none. `report`
    receives lines for the user about retried requests to the server. With a server, or with ColabFold's UniRef30 and
    its taxonomy, these provide the paired rows of complexes, and UniProt is not searched. `latest_template` overrides
    the date of the profile, and applies to the user's own templates too. With `with_server_templates`, the templates
    are the server's hits, and their structure files are stored in the cache. Raise `InputError` if a program is not
    installed, an option is unknown, or a tool needs a cache and there is none.
    """
    colabfold = _colabfold_search(profile, cpus, cache)
    steps = [_alignment_step(database, cpus, cache, colabfold) for database in profile.alignments]
    pairing = template_step = None
    if colabfold is not None and colabfold.uniref.has_taxonomy:
        # Only UniRef30, the first database, has species; environmental sequences have none.
        uniref = next(step.databases[:1] for step in steps if step.tool is colabfold)
        tool = ColabfoldPairing(
            batch=colabfold.batch, database=colabfold.uniref, options=colabfold.options, shared=colabfold.shared
        )
        pairing = PairingStep(result_file=PAIRED_RESULT, tool=tool, databases=uniref)
    if server is not None:
        server_client = AlignmentServer(server, report)
        search, pairs = ServerSearch(server_client, with_templates=with_server_templates), ServerPairing(server_client)
        databases = _searched_on(server_client, search.mode)
        steps.append(AlignmentStep(result_file=SERVER_RESULT, tool=search, max_rows=None, databases=databases))
        pairing = PairingStep(result_file=PAIRED_RESULT, tool=pairs, databases=_searched_on(server_client, pairs.mode))
        if with_server_templates:
            template_step = _server_template_step(search, cache, latest_template)
    uniprot, templates, complex_templates = profile.uniprot, profile.templates, profile.complex_templates
    if template_step is not None and not (templates is None and complex_templates is None):
        raise InputError("templates from the server cannot be combined with a template database; remove one of them")
    if templates is not None:
        template_step = _template_step(templates, cpus, latest_template, colabfold)
    return SearchPlan(
        alignments=tuple(steps),
        templates=template_step,
        user_templates=UserTemplateOptions(latest_release=latest_template),
        pairing=pairing,
        uniprot=None if uniprot is None or pairing is not None else _alignment_step(uniprot, cpus, cache),
        complex_templates=None
        if complex_templates is None
        else _template_step(complex_templates, cpus, latest_template),
    )


def _colabfold_search(profile: DatabaseProfile, cpus: int, cache: Path | None) -> ColabfoldSearch | None:
    """Return the search of the profile's ColabFold databases, or None if it has none.

    Results are shared between runs in a folder of `cache`, unless it is None. Raise `InputError` if a file is missing
    or of the wrong kind, if MMseqs2 is missing or too old, or if the template search needs a search of UniRef30.
    """
    databases = [database for database in profile.alignments if database.tool == "colabfold"]
    if len(databases) > 1:
        names = " and ".join(f"'{database.name}'" for database in databases)
        raise InputError(f"databases {names}: list ColabFold's databases in one table, UniRef30 first")
    options = [_options(ColabfoldOptions, each.options, f"database '{each.name}'") for each in databases]
    templates = profile.templates
    path = templates.paths[0] if templates is not None and templates.tool == "mmseqs" else None
    if profile.complex_templates is not None and profile.complex_templates.tool == "mmseqs":
        raise InputError("[complex_templates]: mmseqs is only supported for [templates]; use hmmsearch or hhsearch")
    if not databases:
        if path is not None:
            raise InputError(f"[templates]: {_PROFILE_REQUIRED}")
        return None
    uniref, *environmental = (ClusterDatabase(path.absolute()) for path in databases[0].paths)
    if path is not None:
        check_sequences(path)
    return ColabfoldSearch(
        batch=MmseqsBatch(program=require_mmseqs(OLDEST_FOR_CLUSTERS), cpus=cpus),
        uniref=uniref,
        environmental=environmental[0] if environmental else None,
        templates=None if path is None else path.absolute(),
        options=options[0],
        shared=None if cache is None else SharedResults(cache / "searches"),
    )


def _alignment_step(
    database: AlignmentDatabase, cpus: int, cache: Path | None, colabfold: ColabfoldSearch | None = None
) -> AlignmentStep:
    """Return the search of an alignment database and its result file."""
    return AlignmentStep(
        result_file=database.result_file,
        tool=_alignment_tool(database, cpus, cache, colabfold),
        max_rows=database.max_rows,
        databases=searched_databases(database),
    )


def _searched_on(server: AlignmentServer, mode: str) -> tuple[SearchedDatabase, ...]:
    """Return the description of a server's databases, for which only the mode of the search is known."""
    return (SearchedDatabase(name=f"MMseqs2 server, mode {mode}", url=server.shown_address),)


def _template_step(
    database: TemplateDatabase, cpus: int, latest: date | None, colabfold: ColabfoldSearch | None = None
) -> TemplateStep:
    """Return the search of a template database; a date `latest` replaces its own latest release date."""
    return TemplateStep(
        result_file=database.result_file,
        tool=_template_tool(database, cpus, colabfold),
        source=StructureDirectory(
            database.structures,
            obsolete=None if database.obsolete is None else read_obsolete(database.obsolete),
            release_dates=None if database.release_dates is None else read_release_dates(database.release_dates),
        ),
        options=TemplateOptions(latest_release=latest or database.latest_release),
        databases=searched_databases(database),
    )


def _server_template_step(search: ServerSearch, cache: Path | None, latest: date | None) -> TemplateStep:
    """Return the template search on a server, whose structures are stored in the cache; without one, raise an error."""
    if cache is None:
        raise InputError(f"structures of a server's templates need a cache: {NO_CACHE}")
    directory = writable_cache(cache) / "structures"
    return TemplateStep(
        result_file=SERVER_TEMPLATES,
        tool=ServerTemplates(alignments=search, structures=directory),
        source=StructureDirectory(directory, is_filled_later=True),
        options=TemplateOptions(latest_release=latest),
        databases=_searched_on(search.server, f"{search.mode}, templates"),
    )


def _alignment_tool(
    database: AlignmentDatabase, cpus: int, cache: Path | None, colabfold: ColabfoldSearch | None
) -> SequenceSearch:
    """Return the search tool of an alignment database; `colabfold`, if given, serves all ColabFold databases."""
    if database.tool == "colabfold" and colabfold is not None:
        return colabfold
    where = f"database '{database.name}'"
    if database.tool == "hhblits":
        return Hhblits(
            program=require_program("hhblits"),
            databases=database.paths,
            options=_options(HhblitsOptions, database.options, where),
            cpus=cpus,
        )
    (path,) = database.paths
    if database.tool == "mmseqs":
        if cache is None:
            raise InputError(f"{where} must be converted for MMseqs2, which needs a cache: {NO_CACHE}")
        return Mmseqs(
            program=require_mmseqs(),
            database=path,
            cache=cache,
            options=_options(MmseqsOptions, database.options, where),
            cpus=cpus,
        )
    # Importing pyhmmer is slow, and only these searches need it.
    from data_pipeline.search.jackhmmer import (  # noqa: PLC0415
        InProcessJackhmmer,
        JackhmmerOptions,
        JackhmmerProgram,
    )

    jackhmmer = _options(JackhmmerOptions, database.options, where)
    if database.engine == "program":
        return JackhmmerProgram(path, jackhmmer, require_program("jackhmmer"), cpus=cpus)
    return InProcessJackhmmer(path, jackhmmer, cpus=cpus)


def _template_tool(database: TemplateDatabase, cpus: int, colabfold: ColabfoldSearch | None) -> TemplateSearch:
    """Return the search tool of a template database; `colabfold`, if given, serves all MMseqs2 databases."""
    if database.tool == "mmseqs" and colabfold is not None:
        return ColabfoldTemplates(alignments=colabfold)
    where = "[templates]"
    if database.tool == "hhsearch":
        return Hhsearch(
            program=require_program("hhsearch"),
            databases=database.paths,
            options=_options(HhsearchOptions, database.options, where),
            cpus=cpus,
        )
    (path,) = database.paths
    from data_pipeline.search.hmmsearch import (  # noqa: PLC0415  as for jackhmmer
        HmmsearchOptions,
        HmmsearchProgram,
        InProcessHmmsearch,
    )

    hmmsearch = _options(HmmsearchOptions, database.options, where)
    if database.engine == "program":
        return HmmsearchProgram(path, hmmsearch, require_program("hmmsearch"), require_program("hmmbuild"), cpus=cpus)
    return InProcessHmmsearch(path, hmmsearch, cpus=cpus)


def _options(kind: type[Options], values: Mapping[str, Any], where: str) -> Options:
    """Return the options of a tool from a table of the profile; `where` begins the errors."""
    names = tuple(kind.__dataclass_fields__)  # type: ignore[attr-defined]  # all tools' options are dataclasses
    if unknown := sorted(set(values) - set(names)):
        raise InputError(f"{where}: unknown option {', '.join(unknown)}; the options are {', '.join(names)}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: {error}") from error
