"""Compute the templates of a target from the hits of a template search."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from data_pipeline.features.templates import AlignedTemplate, aligned_template, stack_templates
from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.template_hit import TemplateHit
from data_pipeline.residues import AMBIGUOUS_LETTERS
from data_pipeline.structure import Chain, Structure
from data_pipeline.templates.filters import (
    TemplateOptions,
    check_atoms,
    check_distances,
    check_hit,
    check_release_date,
    check_structure_date,
)
from data_pipeline.templates.pairwise_alignment import align, identity
from data_pipeline.templates.result import RejectedHit, RejectionReason, TemplateResult, UnusableHitError, UsedTemplate
from data_pipeline.templates.structure_directory import StructureDirectory

# Entry: a PDB id of four characters, in the future long form, or any name in a user's database. Chain ".": unknown.
_HIT_NAME = re.compile(r"((?:pdb_)?[A-Za-z0-9-]{4,64})_([A-Za-z0-9.]+)")
# Below this identity, hit and file are different proteins, not two versions of one protein.
_MIN_IDENTITY = 0.9
_AMBIGUOUS_TO_X = str.maketrans(AMBIGUOUS_LETTERS, "X" * len(AMBIGUOUS_LETTERS))


def templates_from_hits(
    query: str, hits: Sequence[TemplateHit], source: StructureDirectory, options: TemplateOptions
) -> TemplateResult:
    """Compute templates for a target from hits of hhsearch, hmmsearch or MMseqs2, selected and sorted as in AlphaFold.

    Hits of hhsearch are sorted by descending sum of probabilities. Hits of the other programs, which have no such sum,
    remain in file order, and only the first of several with the same aligned sequence is used (AlphaFold 2, Suppl. Sec.
    1.2.3, and AlphaFold 2.3). The result lists all unused hits with the reasons. Raise `InputError` if all hits are
    aligned to another target than `query`.
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
            aligned_types = template.aatype.tobytes()
            if not from_hhsearch and aligned_types in seen:
                raise UnusableHitError(RejectionReason.REPEATED, "an earlier template has the same aligned sequence")
        except UnusableHitError as problem:
            name = printable(hit.name.split(maxsplit=1)[0], 40) if hit.name.strip() else "(no name)"
            rejected.append(RejectedHit.of(name, problem.reason, problem.sentence, hit.index))
        else:
            seen.add(aligned_types)
            templates.append(template)
            used.append(description)
    if hits and all(rejection.reason is RejectionReason.OTHER_TARGET for rejection in rejected) and not used:
        raise InputError(
            f"the template hits are for another target: hit {rejected[0].rank}, "
            f"{rejected[0].sentence}; search for templates with the alignment of this target"
        )
    return TemplateResult(features=stack_templates(templates, len(query)), used=tuple(used), rejected=tuple(rejected))


def template_from_hit(
    query: str, hit: TemplateHit, source: StructureDirectory, options: TemplateOptions
) -> tuple[AlignedTemplate, UsedTemplate]:
    """Return the template of a hit and its description; raise `UnusableHitError` if the hit cannot be used.

    The entry may be replaced by its successor, and the structure is read from `source`. The description's rank is the
    rank of the hit in its file, and its note has the successor and any difference between hit and file.
    """
    match = _HIT_NAME.match(hit.name)
    if match is None:
        raise UnusableHitError(
            RejectionReason.NAME, "its name does not begin with an entry and a chain, such as 1abc_A"
        )
    targets, hit_residues, hit_start = _columns_on_target(query, hit)
    hit_letters = hit.hit_sequence.replace("-", "").upper()
    entry = source.current_entry(match[1].lower())
    table_date = source.release_dates.get(entry)
    check_release_date(entry, table_date, options.latest_release)  # before a structure file is opened
    structure = None
    if not hit_letters.strip("X"):
        structure = source.load(entry)
        hit_letters = _letters_in_chain(structure, match[2], hit_letters, hit_start)
    check_hit(query, hit, hit_letters, options)
    structure = structure or source.load(entry)
    check_structure_date(structure, entry, table_date, options.latest_release)
    located = locate_hit(structure, match[2], hit_letters, hit_start, options.min_residues)
    check_distances(located.chain)

    residues, letters = np.full(len(query), -1, np.int64), np.full(len(query), "-")
    residues[targets] = located.residues[hit_residues]
    letters[targets] = np.array(list(located.letters))[hit_residues]
    name = f"{entry}_{located.chain.name}"
    template = aligned_template(located.chain, residues, "".join(letters), name=name, sum_probs=hit.sum_probs or 0.0)
    check_atoms(template)
    notes = [] if entry == match[1].lower() else [f"successor of {match[1].lower()}"]
    notes += [located.note] if located.note else []
    return template, UsedTemplate(
        name=name,
        rank=hit.index,
        release_date=structure.release_date or table_date,
        aligned=int(np.sum(template.masks.any(axis=1))),
        identity=identity(query, letters),
        note=", ".join(notes),
    )


def _letters_in_chain(structure: Structure, chain_name: str, letters: str, start: int) -> str:
    """Return the residues of a hit from the structure of its chain, because MMseqs2's table does not contain them."""
    sequence = "".join(chain.sequence for chain in structure.chains if chain.name == chain_name)
    if not sequence:
        problem = f"{structure.name} has no protein chain {printable(chain_name)}{_why(structure, chain_name)}"
        raise UnusableHitError(RejectionReason.NO_CHAIN, problem)
    if start + len(letters) > len(sequence):
        stretch = f"residues {start + 1} to {start + len(letters)}"
        problem = f"it is aligned to {stretch} of chain {printable(chain_name)}, which has {len(sequence)} in the file"
        raise UnusableHitError(RejectionReason.OTHER_SEQUENCE, problem)
    return sequence[start : start + len(letters)]


def _columns_on_target(query: str, hit: TemplateHit) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"], int]:
    """Return the columns of a hit in which both the target and the hit have a residue.

    The columns are returned as indices in the target, and as indices among the residues of the hit. The third value is
    the index of the hit's first residue in its chain according to the hit.

    The target row must be a segment of the target (letters for unknown residues match any letter). It is searched at
    the index in the hit, then anywhere, because the target may have been cut after the search. Raise `UnusableHitError`
    if it is not found, or if the rows and residue numbers of the hit are inconsistent.
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
        expected = np.where(residue, max(0, _first_index(numbers, residue)) + np.cumsum(residue) - 1, -1)
        if not np.array_equal(numbers, expected):
            column = int(np.flatnonzero(numbers != expected)[0])
            raise UnusableHitError(
                RejectionReason.INCONSISTENT,
                f"{name} residue number in column {column + 1} is {numbers[column] + 1}, not {expected[column] + 1}",
            )
    query_segment, stated = hit.query.replace("-", "").upper(), _first_index(hit.indices_query, in_query)
    start = find_exact(query, query_segment, stated)
    start = find_with_unknown(query, query_segment, stated) if start < 0 else start
    if start < 0:
        raise UnusableHitError(RejectionReason.OTHER_TARGET, _difference(query, query_segment, stated))
    common_columns = np.flatnonzero(in_query & in_hit)
    hit_start = _first_index(hit.indices_hit, in_hit)
    return start + np.cumsum(in_query)[common_columns] - 1, np.cumsum(in_hit)[common_columns] - 1, hit_start


def _first_index(indices: Int[np.ndarray, "columns"], residue: Bool[np.ndarray, "columns"]) -> int:
    """Return the residue index at which an aligned row begins."""
    return int(indices[residue.argmax()])


def _difference(query: str, piece: str, stated: int) -> str:
    """Return how a hit's aligned residues `piece` differ from the target's, from index `stated` on."""
    if stated + len(piece) > len(query):
        return f"it is aligned to residues {stated + 1} to {stated + len(piece)}, but the target has {len(query)}"
    index = next(i for i, letter in enumerate(piece) if letter != query[stated + i])
    letter, own = printable(piece[index]), query[stated + index]
    return f"it is aligned to '{letter}' at residue {stated + index + 1}, where the target has '{own}'"


@dataclass(frozen=True, kw_only=True)
class HitLocation:
    """Location of the residues of a hit in a chain of its structure file.

    `residues` has the index in the chain of each residue of the hit, -1 if it is missing, and `letters` the chain's
    one-letter code, "-" if it is missing. `note` is how the location differs from the hit, else "".
    """

    chain: Chain
    residues: Int[np.ndarray, "n"]  # index in the chain of each residue of the hit, -1 if it is missing
    letters: str  # one-letter code of each residue of the hit, "-" if the chain lacks it
    note: str  # how the location differs from the hit, else ""


def locate_hit(structure: Structure, chain_name: str, letters: str, stated: int, min_residues: int) -> HitLocation:
    """Locate the residues `letters` of a hit in a structure, where they should begin at index `stated` of a chain.

    The order is AlphaFold's. The first choice is a chain with exactly these residues, with `chain_name` before the
    others. The second is a chain with these residues if X on either side matches any residue. The last is `chain_name`
    (or the only chain) if it can be aligned with at least 90 % identity and `min_residues` aligned residues. Raise
    `UnusableHitError` if no chain matches.
    """
    # `chain_name` comes first, then the others in file order.
    chains = sorted(structure.chains, key=lambda chain: chain.name != chain_name)
    if not chains:
        raise UnusableHitError(
            RejectionReason.NO_CHAIN, f"{structure.name} has no protein chain{_why(structure, chain_name)}"
        )
    # Differs from AlphaFold: with X, too, `chain_name` is tried first. AlphaFold starts with the first chain.
    for find, difference in ((find_exact, ""), (find_with_unknown, "up to unknown residues")):
        for chain in chains:
            start = find(chain.sequence, letters, stated)
            if start >= 0:
                notes = [difference] if difference else []
                if chain.name != chain_name:
                    notes.insert(0, f"found in chain {printable(chain.name)}, not {printable(chain_name)}")
                residues = start + np.arange(len(letters))
                return HitLocation(chain=chain, residues=residues, letters=letters, note=" ".join(notes))
    return _realigned(structure, chain_name, letters, min_residues)


def find_exact(sequence: str, piece: str, stated: int) -> int:
    """Return the index at which `piece` begins in `sequence`, or -1 if it does not occur.

    This is `stated` if the piece begins there, else the index of its first occurrence.

    Differs from AlphaFold, which always uses the first occurrence, although it is wrong for the second of two repeats.
    """
    return stated if sequence.startswith(piece, stated) else sequence.find(piece)


def find_with_unknown(sequence: str, piece: str, stated: int) -> int:
    """Return the same index as `find_exact`, but let letters for unknown residues on either side match any letter."""
    letters = (f"[{letter}X]" if letter != "X" else "." for letter in map(re.escape, piece.translate(_AMBIGUOUS_TO_X)))
    pattern = re.compile("".join(letters))
    sequence = sequence.translate(_AMBIGUOUS_TO_X)
    match = pattern.match(sequence, stated) or pattern.search(sequence)
    return -1 if match is None else match.start()


def _realigned(structure: Structure, chain_name: str, letters: str, min_residues: int) -> HitLocation:
    """Locate a hit by aligning it to the sequence of its chain in the file."""
    named = [chain for chain in structure.chains if chain.name == chain_name]
    if not named and len(structure.chains) > 1:
        names = printable(", ".join(chain.name for chain in structure.chains))
        problem = f"{structure.name} has chains {names} and no protein chain {printable(chain_name)}"
        raise UnusableHitError(RejectionReason.NO_CHAIN, problem + _why(structure, chain_name))
    # Differs from AlphaFold, which aligns to a single chain of another name, but looks for atoms under the hit's name.
    chain = named[0] if named else structure.chains[0]
    alignment = align("global", letters, chain.sequence)
    identity = alignment.identities / min(len(letters), len(chain.sequence))
    if identity < _MIN_IDENTITY:
        problem = f"only {identity:.0%} of its residues match chain {printable(chain.name)} in the file"
        raise UnusableHitError(RejectionReason.OTHER_SEQUENCE, f"{problem}, and {_MIN_IDENTITY:.0%} are needed")
    aligned = alignment.partner >= 0
    if aligned.sum() < min_residues:
        raise UnusableHitError(
            RejectionReason.SHORT,
            f"only {aligned.sum()} of its residues are in the file, and {min_residues} are needed",
        )
    return HitLocation(
        chain=chain,
        residues=alignment.partner,
        letters="".join(chain.sequence[index] if index >= 0 else "-" for index in alignment.partner),
        note=f"realigned to chain {printable(chain.name)} of the file, with {identity:.0%} identity",
    )


def _why(structure: Structure, chain_name: str) -> str:
    """Return the reason why a chain of the file is not in the structure, in brackets, or "" if it is unknown."""
    why = structure.skipped.get(chain_name)
    return "" if why is None else f" ({printable(why)})"
