"""Choose the tools that search a profile's databases."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from data_pipeline.errors import InputError
from data_pipeline.search.database import AlignmentDatabase, DatabaseProfile, TemplateDatabase
from data_pipeline.search.hhsuite import Hhblits, HhblitsOptions, Hhsearch, HhsearchOptions
from data_pipeline.search.hmmsearch import HmmsearchOptions, HmmsearchProgram, InProcessHmmsearch
from data_pipeline.search.jackhmmer import InProcessJackhmmer, JackhmmerOptions, JackhmmerProgram
from data_pipeline.search.mmseqs import Mmseqs, MmseqsOptions
from data_pipeline.search.mmseqs_server import ServerOptions, ServerSearch
from data_pipeline.search.process import require_program
from data_pipeline.search.tool import SequenceSearch, TemplateSearch
from data_pipeline.templates.filters import TemplateOptions
from data_pipeline.templates.from_files import UserTemplateOptions
from data_pipeline.templates.structure_directory import StructureDirectory, read_obsolete, read_release_dates
from data_pipeline.user_cache import NO_CACHE

SERVER_RESULT = "server_hits.a3m"
Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True)
class AlignmentStep:
    """One search for a target's homologs."""

    result_file: str
    tool: SequenceSearch
    max_rows: int | None  # rows of the result to read, including the target's; None: all


@dataclass(frozen=True, kw_only=True)
class TemplateStep:
    """The search for a target's templates."""

    result_file: str
    tool: TemplateSearch
    source: StructureDirectory
    options: TemplateOptions


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """All searches of a target, in the order in which their rows are merged."""

    alignments: tuple[AlignmentStep, ...] = ()
    templates: TemplateStep | None = None
    user_templates: UserTemplateOptions = field(default_factory=UserTemplateOptions)  # for the user's structure files


def plan_searches(
    profile: DatabaseProfile,
    *,
    cpus: int,
    cache: Path | None,
    server: ServerOptions | None = None,
    report: Callable[[str], None] = lambda _: None,
    latest_template: date | None = None,
) -> SearchPlan:
    """Return the searches of a profile's databases, each with `cpus` threads, followed by the server's.

    `cache` is a directory for files that a tool derives from a database once; None if the user has none. `report` gets
    a line whenever the server is asked again, for the user to see. `latest_template` applies to the user's own
    templates too, and overrides the profile's date. Raise `InputError` if a program is not installed, or a tool does
    not have an option or needs a cache that is not there.
    """
    steps = [
        AlignmentStep(
            result_file=database.result_file, tool=_alignment_tool(database, cpus, cache), max_rows=database.max_rows
        )
        for database in profile.alignments
    ]
    if server is not None:
        steps.append(AlignmentStep(result_file=SERVER_RESULT, tool=ServerSearch(server, report), max_rows=None))
    templates = profile.templates
    return SearchPlan(
        alignments=tuple(steps),
        templates=None
        if templates is None
        else TemplateStep(
            result_file=templates.result_file,
            tool=_template_tool(templates, cpus),
            source=StructureDirectory(
                templates.structures,
                obsolete=None if templates.obsolete is None else read_obsolete(templates.obsolete),
                release_dates=None if templates.release_dates is None else read_release_dates(templates.release_dates),
            ),
            options=TemplateOptions(latest_release=latest_template or templates.latest_release),
        ),
        user_templates=UserTemplateOptions(latest_release=latest_template),
    )


def _alignment_tool(database: AlignmentDatabase, cpus: int, cache: Path | None) -> SequenceSearch:
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
            raise InputError(f"{where} is converted for MMseqs2 once and kept: {NO_CACHE}")
        return Mmseqs(
            program=require_program("mmseqs"),
            database=path,
            cache=cache,
            options=_options(MmseqsOptions, database.options, where),
            cpus=cpus,
        )
    jackhmmer = _options(JackhmmerOptions, database.options, where)
    if database.engine == "program":
        return JackhmmerProgram(path, jackhmmer, require_program("jackhmmer"), cpus=cpus)
    return InProcessJackhmmer(path, jackhmmer, cpus=cpus)


def _template_tool(database: TemplateDatabase, cpus: int) -> TemplateSearch:
    where = "[templates]"
    if database.tool == "hhsearch":
        return Hhsearch(
            program=require_program("hhsearch"),
            databases=database.paths,
            options=_options(HhsearchOptions, database.options, where),
            cpus=cpus,
        )
    (path,) = database.paths
    hmmsearch = _options(HmmsearchOptions, database.options, where)
    if database.engine == "program":
        return HmmsearchProgram(path, hmmsearch, require_program("hmmsearch"), require_program("hmmbuild"), cpus=cpus)
    return InProcessHmmsearch(path, hmmsearch, cpus=cpus)


def _options(kind: type[Options], given: Mapping[str, Any], where: str) -> Options:
    """Return a tool's options from a profile's table."""
    known = tuple(kind.__dataclass_fields__)  # type: ignore[attr-defined]  # all tools' options are dataclasses
    if unknown := sorted(set(given) - set(known)):
        raise InputError(f"{where}: unknown option {', '.join(unknown)}; there are {', '.join(known)}")
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: {error}") from error
