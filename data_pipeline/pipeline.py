"""Compute the features of a target from the user's files and from database searches."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path

from data_pipeline.features.monomer import monomer_features, numbered
from data_pipeline.features.msa import single_sequence
from data_pipeline.features.schema import Features
from data_pipeline.features.templates import TemplateFeatures
from data_pipeline.io.errors import InputError, SearchError, printable
from data_pipeline.parse.a3m import Alignment, parse_a3m
from data_pipeline.parse.alignment import chain_lengths, read_alignment
from data_pipeline.parse.fasta import check_sequence, kind_problem, unknown_residues_problem
from data_pipeline.parse.stockholm import (
    a3m_to_stockholm,
    deduplicated,
    parse_stockholm,
    stockholm_to_a3m,
    truncated,
    without_empty_columns,
)
from data_pipeline.parse.template_hit import parse_hits
from data_pipeline.search.plan import AlignmentStep, SearchPlan, TemplateStep
from data_pipeline.search.result_files import ResultFiles
from data_pipeline.search.tool import BatchSearch, FileFormat, StructureSource
from data_pipeline.templates.from_files import templates_from_files, unused_files
from data_pipeline.templates.from_hits import templates_from_hits
from data_pipeline.templates.result import TemplateResult


@dataclass(frozen=True, kw_only=True)
class Target:
    """One protein to predict, with the user's alignments and templates.

    `alignments` are files with the target in the first row, and `templates` are mmCIF or PDB files or directories.
    `latest_template` limits the release dates of templates in addition to the plan. `as_protein` accepts a sequence
    that looks like DNA, RNA or three-letter codes. `description` is the FASTA header after the name. `fragment` has the
    residue numbers of the sequence in a longer chain, such as 1-100,150-200, or "" for a whole chain.
    """

    name: str
    sequence: str
    alignments: tuple[Path, ...] = ()  # a3m, Stockholm or another aligned format, with the target first
    templates: tuple[Path, ...] = ()  # mmCIF or PDB files, or directories of these
    latest_template: date | None = None  # max release date of templates, in addition to the plan's limit
    as_protein: bool = False  # accept sequences that look like DNA, RNA or three-letter codes
    description: str = ""  # the header of its FASTA record after the name
    fragment: str = ""  # residues of a longer chain that the sequence has, such as 1-100,150-200; "": all

    def template_date(self, latest: date | None) -> date | None:
        """Return the earlier of the target's template date and `latest`, or None if both are None."""
        return min((each for each in (self.latest_template, latest) if each is not None), default=None)

    def dated(self, plan: SearchPlan) -> SearchPlan:
        """Return the plan with the target's template date as an additional limit on user and searched templates."""
        user, step = plan.user_templates, plan.templates
        user = replace(user, latest_release=self.template_date(user.latest_release))
        if step is not None:
            latest = self.template_date(step.options.latest_release)
            step = replace(step, options=replace(step.options, latest_release=latest))
        return replace(plan, user_templates=user, templates=step)


@dataclass(frozen=True, kw_only=True)
class PreparedTarget:
    """Features of a target, with the sizes of its alignments and the used and rejected templates.

    `alignment_rows` counts the rows of each file, before merging and without the target. `notes` has a sentence for
    each template file of the user without a usable template.
    """

    features: Features
    alignment_rows: dict[str, int]  # rows by alignment file, before merging and without the target
    templates: TemplateResult | None  # None: neither user templates nor a template search
    notes: tuple[str, ...] = ()  # about the user's files, see `file_notes`


@dataclass(frozen=True, kw_only=True)
class Homologs:
    """Alignments and templates of a target, from the user's files and from searches.

    `alignments` has the user's first, by path, then the search results, by file name; row 0 of each is the target.
    """

    alignments: dict[str, Alignment]
    templates: TemplateResult | None  # None: neither user templates nor a template search

    @property
    def alignment_rows(self) -> dict[str, int]:
        """Number of rows by alignment file, without the target, including duplicates.

        ColabFold's alignments repeat the target, under the same name, before the rows of each database.
        """
        return {
            source: sum(
                name != alignment.names[0] or bool((row != alignment.letters[0]).any())
                for name, row in zip(alignment.names, alignment.letters, strict=True)
            )
            for source, alignment in self.alignments.items()
        }

    @property
    def template_features(self) -> TemplateFeatures | None:
        """Features of the templates, or None without a template result."""
        return None if self.templates is None else self.templates.features


def prepare(target: Target, plan: SearchPlan | None = None, results: Path | None = None) -> PreparedTarget:
    """Run the searches of a target and return its features.

    The MSA has the target itself, then the user's alignments, then the search results in the order of the plan, without
    duplicate rows. See `find_homologs` for the searches and the errors. Without `results`, notes are also issued as
    Python warnings.
    """
    homologs = find_homologs(target, plan, results)
    features = monomer_features(target.name, target.sequence, homologs.alignments.values(), homologs.template_features)
    return PreparedTarget(
        features=numbered(features, target.fragment),
        alignment_rows=homologs.alignment_rows,
        templates=homologs.templates,
        notes=file_notes(target.templates, [homologs], warn=results is None),
    )


def file_notes(templates: Sequence[Path], homologs: Iterable[Homologs], *, warn: bool) -> tuple[str, ...]:
    """Return sentences on alignments that seem to be of several chains, and on template files that are not used.

    `homologs` has one entry per distinct chain. With `warn`, each sentence is also issued as a Python warning.
    """
    notes, results = list[str](), list[TemplateResult]()
    for each in homologs:
        notes += filter(None, (_chains_note(path, alignment) for path, alignment in each.alignments.items()))
        results += [] if each.templates is None else [each.templates]
    notes += unused_files(templates, results)
    for note in notes if warn else ():
        warnings.warn(note, stacklevel=3)
    return tuple(notes)


def _chains_note(path: str, alignment: Alignment) -> str | None:
    """Return a sentence on an alignment that looks like ColabFold's of a complex without its first line, or None."""
    if not (lengths := chain_lengths(alignment)):
        return None
    first_line = f"#{','.join(map(str, lengths))}<TAB>{','.join('1' * len(lengths))}"
    return (
        f"{printable(path)} looks like an alignment of {len(lengths)} chains, but is used for one; for a complex, pass "
        f"it as the input, with the first line {first_line}"
    )


def find_homologs(target: Target, plan: SearchPlan | None = None, results: Path | None = None) -> Homologs:
    """Read the alignments of a target and run the searches of `plan`, which are none if it is None.

    Templates are the user's if there are any, else the hits of the template search (AlphaFold 2, Suppl. Sec. 1.2.2 and
    1.2.3). Search results are stored in the directory `results` and reused. Raise `InputError` for invalid input,
    `SearchError` if a tool fails, and `ValueError` for searches without `results`.
    """
    check_sequence(target.sequence, f"sequence of '{target.name}'")
    problem = unknown_residues_problem(target.sequence)
    if problem is None and not target.as_protein:
        problem = kind_problem(target.sequence)
    if problem is not None:
        raise InputError(f"'{printable(target.name)}' cannot be predicted: {problem}")
    plan = plan or SearchPlan()
    if results is None and (plan.alignments or plan.templates is not None):
        raise ValueError("searches need a directory for their results")
    rows: dict[str, Alignment] = {str(path): read_alignment(path, target.sequence) for path in target.alignments}
    search_results: list[tuple[AlignmentStep, bytes]] = []
    if results is not None:
        for step in plan.alignments:
            content, rows[step.result_file] = search_homologs(target.sequence, step, results)
            search_results.append((step, content))
    templates: TemplateResult | None = None
    plan = target.dated(plan)
    if target.templates:
        templates = templates_from_files(target.sequence, target.templates, plan.user_templates)
    elif plan.templates is not None and results is not None:
        templates = _templates(target.sequence, plan.templates, search_results, rows, ResultFiles(directory=results))
    return Homologs(alignments=rows, templates=templates)


def search_homologs(sequence: str, step: AlignmentStep, directory: Path) -> tuple[bytes, Alignment]:
    """Search for homologs of a sequence; return the result in the format of the tool, and the parsed alignment.

    The result is stored in the directory, and reused if the tool, its settings and the sequence are the same. Raise
    `SearchError` if the tool fails.
    """
    return ResultFiles(directory=directory).find_or_search(
        step.result_file,
        step.tool.identity(),
        sequence.encode(),
        partial(step.tool.search, sequence),
        partial(_parse, step=step, sequence=sequence, directory=directory),
    )


def search_ahead(targets: Sequence[Target], plan: SearchPlan, results: Callable[[Target], Path]) -> None:
    """Run the searches with tools that support many targets at once, and store the results in `results(target)`.

    Only targets without a stored result are searched, and template searches are not run. A database of 100 GB is then
    read once for sixteen or more targets instead of once per target. Errors of a search are ignored, because `prepare`
    repeats the search for each target and raises them.
    """
    for step in plan.alignments:
        if not isinstance(step.tool, BatchSearch):
            continue
        identity = step.tool.identity()
        missing = [target for target in targets if _is_missing(step.result_file, identity, target, results(target))]
        count = step.tool.targets_per_pass
        for start in range(0, len(missing), count):
            batch = missing[start : start + count]
            try:
                contents = step.tool.search_many([target.sequence for target in batch])
                for target, content in zip(batch, contents, strict=True):
                    _save(target, step, identity, content, results(target))
            except (InputError, SearchError, OSError):
                continue


def _save(target: Target, step: AlignmentStep, identity: str, content: bytes, directory: Path) -> None:
    """Store a result if possible; failures do not affect other targets of the batch."""
    parse = partial(_parse, step=step, sequence=target.sequence, directory=directory)
    with suppress(InputError, SearchError, OSError):
        ResultFiles(directory=directory).save(step.result_file, identity, target.sequence.encode(), content, parse)


def _parse(content: bytes, *, step: AlignmentStep, sequence: str, directory: Path) -> Alignment:
    """Return the alignment in the content of a step's result file; `sequence` is the query."""
    parse = parse_stockholm if step.tool.file_format == "sto" else parse_a3m
    return parse(content, sequence, path=directory / step.result_file, max_rows=step.max_rows)


def _is_missing(file: str, identity: str, target: Target, directory: Path) -> bool:
    """Return whether the directory has no result of this search; a damaged record of searches counts as a result."""
    try:
        return ResultFiles(directory=directory).find(file, identity, target.sequence.encode()) is None
    except InputError:  # a damaged `searches.json`, which `prepare` reports
        return False


def _templates(
    sequence: str,
    step: TemplateStep,
    search_results: Sequence[tuple[AlignmentStep, bytes]],
    rows: dict[str, Alignment],
    files: ResultFiles,
) -> TemplateResult:
    """Search for templates with the first alignment, which is from UniRef90 in AlphaFold's plan."""
    if search_results:
        first, content = search_results[0]
        query = _template_query(content, first.tool.file_format, step.tool.input_format, first.max_rows)
    else:
        alignment = next(iter(rows.values()), single_sequence(sequence))
        # Only the columns, without insertions.
        names = ("query", *alignment.names[1:])
        a3m = (
            b">%b\n%b\n" % (name.encode(), row.tobytes()) for name, row in zip(names, alignment.letters, strict=True)
        )
        query = _template_query(b"".join(a3m), "a3m", step.tool.input_format, None)
    path = files.directory / step.result_file
    parse = partial(parse_hits, query=sequence, file_format=step.tool.file_format, path=path)
    identity, search = step.tool.identity(), partial(step.tool.search, query)
    _, hits = files.find_or_search(step.result_file, identity, query, search, parse)
    if isinstance(step.tool, StructureSource):
        step.tool.fetch([hit.name for hit in hits])
    return templates_from_hits(sequence, hits, step.source, step.options)


def _template_query(content: bytes, source: FileFormat, target: FileFormat, max_rows: int | None) -> bytes:
    """Convert an alignment to the input format of the template search; Stockholm is cleaned first, as in AlphaFold."""
    if source == "sto":
        if max_rows is not None:
            content = truncated(content, max_rows)
        content = without_empty_columns(deduplicated(content))
        return content if target == "sto" else stockholm_to_a3m(content)
    return content if target == "a3m" else a3m_to_stockholm(content)
