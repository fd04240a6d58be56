"""Make templates of a target from the hits of a template search."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from data_pipeline.errors import InputError, printable
from data_pipeline.features.templates import AlignedTemplate, aligned_template, stack_templates
from data_pipeline.parse.template_hit import TemplateHit
from data_pipeline.templates.filters import (
    TemplateOptions,
    check_atoms,
    check_distances,
    check_hit,
    check_release_date,
    check_structure_date,
)
from data_pipeline.templates.locate_hit import find_exact, find_with_unknown, locate_hit
from data_pipeline.templates.pairwise_alignment import identity
from data_pipeline.templates.result import RejectedHit, RejectionReason, TemplateResult, UnusableHitError, UsedTemplate
from data_pipeline.templates.structure_directory import StructureDirectory

# Entry: four characters, the PDB's future long form, or any name in a user's own database. Chain "." is unknown.
_NAME = re.compile(r"((?:pdb_)?[A-Za-z0-9-]{4,64})_([A-Za-z0-9.]+)")


def templates_from_hits(
    query: str, hits: Sequence[TemplateHit], source: StructureDirectory, options: TemplateOptions
) -> TemplateResult:
    """Make templates for a target from the hits of hhsearch or hmmsearch, chosen and ordered as in AlphaFold.

    Hits of hhsearch are used in order of descending sum of probabilities. Hits of hmmsearch, which have no such sum,
    are used in file order, and only the first of several with the same aligned sequence (AlphaFold 2, Suppl. Sec.
    1.2.3, and AlphaFold 2.3). The result lists every hit that is not used with the reason. Raise `InputError` if all
    hits are aligned to another target than `query`.
    """
    from_hhsearch = all(hit.sum_probs is not None for hit in hits)
    ordered = sorted(hits, key=lambda hit: -(hit.sum_probs or 0.0)) if from_hhsearch else hits
    templates: list[AlignedTemplate] = []
    used: list[UsedTemplate] = []
    rejected: list[RejectedHit] = []
    seen: set[bytes] = set()
    for hit in ordered:
        try:
            if len(templates) >= options.max_templates:
                raise UnusableHitError(
                    RejectionReason.ENOUGH, f"{options.max_templates} templates were found before it"
                )
            template, description = template_from_hit(query, hit, source, options)
            look = template.aatype.tobytes()
            if not from_hhsearch and look in seen:
                raise UnusableHitError(RejectionReason.REPEATED, "its aligned sequence is that of a template before it")
        except UnusableHitError as problem:
            name = printable(hit.name.split(maxsplit=1)[0], 40) if hit.name.strip() else "(no name)"
            rejected.append(RejectedHit.of(name, problem.reason, problem.sentence, hit.index))
        else:
            seen.add(look)
            templates.append(template)
            used.append(description)
    if hits and all(rejection.reason is RejectionReason.OTHER_TARGET for rejection in rejected) and not used:
        raise InputError(
            f"the template hits are those of another target: hit {rejected[0].rank}, "
            f"{rejected[0].sentence}; search templates with this target's alignment"
        )
    return TemplateResult(features=stack_templates(templates, len(query)), used=tuple(used), rejected=tuple(rejected))


def template_from_hit(
    query: str, hit: TemplateHit, source: StructureDirectory, options: TemplateOptions
) -> tuple[AlignedTemplate, UsedTemplate]:
    """Make a template from one hit, with its description; raise `UnusableHitError` if the hit cannot be used."""
    match = _NAME.match(hit.name)
    if match is None:
        raise UnusableHitError(
            RejectionReason.NAME, "its name does not begin with an entry and a chain, such as 1abc_A"
        )
    columns = _columns_on_target(query, hit)
    hit_letters = hit.hit_sequence.replace("-", "").upper()
    entry = source.current_entry(match[1].lower())
    listed = source.release_dates.get(entry)
    check_release_date(entry, listed, options.latest_release)  # before a structure file is opened
    check_hit(query, hit, hit_letters, options)
    structure = source.load(entry)
    check_structure_date(structure, entry, listed, options.latest_release)
    located = locate_hit(structure, match[2], hit_letters, columns.hit_start, options.min_residues)
    check_distances(located.chain)

    residues, letters = np.full(len(query), -1, np.int64), np.full(len(query), "-")
    residues[columns.targets] = located.residues[columns.hit_residues]
    letters[columns.targets] = np.array(list(located.letters))[columns.hit_residues]
    name = f"{entry}_{located.chain.name}"
    template = aligned_template(located.chain, residues, "".join(letters), name=name, sum_probs=hit.sum_probs or 0.0)
    check_atoms(template)
    notes = [] if entry == match[1].lower() else [f"successor of {match[1].lower()}"]
    notes += [located.note] if located.note else []
    return template, UsedTemplate(
        name=name,
        rank=hit.index,
        release_date=structure.release_date or listed,
        aligned=int(np.sum(template.masks.any(axis=1))),
        identity=identity(query, letters),
        note=", ".join(notes),
    )


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Columns of a hit in which both the target and the hit have a residue."""

    targets: Int[np.ndarray, "n"]  # index in the target
    hit_residues: Int[np.ndarray, "n"]  # index among the residues of the hit
    hit_start: int  # index of the hit's first residue in its chain, as the hit states it


def _columns_on_target(query: str, hit: TemplateHit) -> _Columns:
    """Return the columns of a hit in which both the target and the hit have a residue.

    The target's row must be a stretch of the target (letters for unknown residues match any letter). It is looked for
    at the index that the hit states, then anywhere, since the target may have been cut after the search. Raise
    `UnusableHitError` if it is not found or the hit's rows and residue numbers contradict each other.
    """
    rows, indices = (hit.query, hit.hit_sequence), (hit.indices_query, hit.indices_hit)
    length = len(hit.query)
    if any(len(part) != length for part in (*rows, *indices)):
        raise UnusableHitError(
            RejectionReason.INCONSISTENT, "its aligned rows and their residue numbers differ in length"
        )
    in_query, in_hit = (np.array([letter != "-" for letter in row], bool) for row in rows)
    for name, residue, numbers in (("the target's", in_query, indices[0]), ("its", in_hit, indices[1])):
        if not residue.any():
            raise UnusableHitError(RejectionReason.INCONSISTENT, f"{name} row has no residues")
        counted = np.where(residue, max(0, _first_index(numbers, residue)) + np.cumsum(residue) - 1, -1)
        if not np.array_equal(numbers, counted):
            column = int(np.flatnonzero(numbers != counted)[0])
            raise UnusableHitError(
                RejectionReason.INCONSISTENT,
                f"{name} residue number in column {column + 1} is {numbers[column] + 1}, not {counted[column] + 1}",
            )
    piece, stated = hit.query.replace("-", "").upper(), _first_index(hit.indices_query, in_query)
    start = find_exact(query, piece, stated)
    start = find_with_unknown(query, piece, stated) if start < 0 else start
    if start < 0:
        raise UnusableHitError(RejectionReason.OTHER_TARGET, _difference(query, piece, stated))
    both = np.flatnonzero(in_query & in_hit)
    return _Columns(
        targets=start + np.cumsum(in_query)[both] - 1,
        hit_residues=np.cumsum(in_hit)[both] - 1,
        hit_start=_first_index(hit.indices_hit, in_hit),
    )


def _first_index(indices: Int[np.ndarray, "columns"], residue: Bool[np.ndarray, "columns"]) -> int:
    """Return the residue index at which an aligned row begins."""
    return int(indices[residue.argmax()])


def _difference(query: str, piece: str, stated: int) -> str:
    if stated + len(piece) > len(query):
        return f"it is aligned to residues {stated + 1} to {stated + len(piece)}, and the target has {len(query)}"
    index = next(i for i, letter in enumerate(piece) if letter != query[stated + i])
    found, own = printable(piece[index]), query[stated + index]
    return f"it is aligned to '{found}' at residue {stated + index + 1}, where the target has '{own}'"
