"""Compute templates from the user's structure files by aligning the sequence of each chain to the target."""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated

import numpy as np

from data_pipeline.features.templates import AlignedTemplate, aligned_template, stack_templates
from data_pipeline.io.config import FRACTION, Checked, at_least
from data_pipeline.io.errors import InputError, input_problems, printable
from data_pipeline.io.files import os_errors_as_input_errors, without_suffix
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import Chain, Structure
from data_pipeline.templates.filters import check_atoms, check_distances, check_structure_date
from data_pipeline.templates.pairwise_alignment import align, identity
from data_pipeline.templates.result import RejectedHit, RejectionReason, TemplateResult, UnusableHitError, UsedTemplate
from data_pipeline.templates.structure_directory import STRUCTURE_SUFFIXES, is_structure_name

# Pairwise alignments below this identity are often wrong (Rost, Protein Eng. 12, 85, 1999).
_DOUBTFUL_IDENTITY = 0.25
_MAX_REASONS = 3  # in one sentence


@dataclass(frozen=True, kw_only=True)
class UserTemplateOptions(Checked):
    """Settings of the selection of templates from the chains of the user's structures.

    `latest_release` is the max release date; None allows any date, including unknown ones. A chain needs an alignment
    to the target with at most `max_e_value` and at least `min_residues` aligned residues. Its aligned residues per
    target residue must exceed `min_coverage`.
    """

    max_templates: Annotated[int, at_least(0)] = 20  # the model reads only the first four
    latest_release: date | None = None  # max release date of templates; None: any date, including unknown ones
    # One in a thousand unrelated chains, such as binding partners in the same file, passes this by chance.
    max_e_value: Annotated[float, at_least(0)] = 1e-3
    min_residues: Annotated[int, at_least(1)] = 10  # aligned residues; AlphaFold's value for hits
    # Aligned residues per target residue must exceed this; AlphaFold's value for hits.
    min_coverage: Annotated[float, FRACTION] = 0.1


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    score: float
    template: AlignedTemplate
    description: UsedTemplate


def templates_from_files(
    query: str,
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    options: UserTemplateOptions,
) -> TemplateResult:
    """Compute templates for a target from structure files or directories of structure files, without subdirectories.

    All protein chains are aligned to the target sequence `query` (Smith-Waterman, BLOSUM62), and the chains with the
    best scores become templates; chains with equal scores are ordered by file and chain. If chains of one file have
    the same sequence, only the one with the most atoms is used. The result lists all other files and chains with the
    reasons why they were rejected. Raise `InputError` if a file cannot be read, or if there is no structure file.
    """
    sources = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    candidates: list[_Candidate] = []
    rejected: list[RejectedHit] = []
    files = 0
    with input_problems() as problems:
        for path in _files(sources, rejected):
            files += 1
            with problems.collected():
                candidates += _candidates(query, _stem(path), read_structure(path), options, rejected)
            candidates.sort(key=lambda candidate: -candidate.score)  # stable
            for worse in candidates[options.max_templates :]:
                why = f"{options.max_templates} chains are aligned to the target at least as well"
                rejected.append(RejectedHit.of(worse.template.name, RejectionReason.ENOUGH, why))
            del candidates[options.max_templates :]
    if not files:
        names = printable(", ".join(str(path) for path in sources) or "(nothing)")
        raise InputError(
            f"{names}: no structure files for templates; their names end in {', '.join(STRUCTURE_SUFFIXES)}"
        )
    return TemplateResult(
        features=stack_templates([candidate.template for candidate in candidates], len(query)),
        used=tuple(replace(best.description, rank=rank) for rank, best in enumerate(candidates, start=1)),
        rejected=tuple(rejected),
    )


def templates_of_chains(
    sequences: Mapping[str, str], path: str | os.PathLike[str], options: UserTemplateOptions
) -> dict[str, AlignedTemplate]:
    """Return a template for each chain of a complex that a structure file holds, by the name of the complex's chain.

    `sequences` has the sequence of each chain of the complex by name. Each protein chain of the file is the template of
    at most one chain: pairs of chains with the best alignments come first, then those that come first in the complex
    and in the file. Raise `InputError` if the file cannot be read or has fewer than two chains of the complex.
    """
    structure = read_structure(path)
    reasons = {chain.name: list[str]() for chain in structure.chains}
    candidates = dict[tuple[str, str], _Candidate]()
    for sequence in dict.fromkeys(sequences.values()):
        for chain in structure.chains:
            name = f"{_stem(Path(path))}_{printable(chain.name)}"
            try:
                candidate = _candidate(sequence, name, structure, chain, options)
            except UnusableHitError as problem:
                reasons[chain.name].append(problem.sentence)
            else:
                candidates.update({(own, chain.name): candidate for own in sequences if sequences[own] == sequence})
    order = {pair: place for place, pair in enumerate(itertools.product(sequences, reasons))}
    templates, used_chains = dict[str, AlignedTemplate](), set[str]()
    for own, other in sorted(candidates, key=lambda pair: (-candidates[pair].score, order[pair])):
        if own not in templates and other not in used_chains:
            templates[own] = candidates[own, other].template
            used_chains.add(other)
    if len(templates) < 2:
        summary = f"only {next(iter(templates))} is in it" if templates else "none is in it"
        why = "; ".join(f"chain {printable(name)}: {each[0]}" for name, each in reasons.items() if each)
        raise InputError.at(
            path,
            f"a template across chains must have at least two chains of the complex ({', '.join(sequences)}), {summary}"
            + (f" ({why})" if why else ""),
        )
    return {own: templates[own] for own in sequences if own in templates}


def unused_files(paths: Sequence[str | os.PathLike[str]], results: Sequence[TemplateResult]) -> tuple[str, ...]:
    """Return a sentence with up to three reasons for each file or directory without a template used in `results`.

    `results` has the result of each distinct chain for the same `paths`.
    """
    used, rejected = [hit for each in results for hit in each.used], [hit for each in results for hit in each.rejected]
    sentences: list[str] = []
    for path in map(Path, paths):
        names = {hit.name for hit in used} | {hit.name for hit in rejected}
        if not path.is_dir():  # chains are named <stem>_<chain>
            names = {name for name in names if name.rpartition("_")[0] == _stem(path)}
        if any(hit.name in names for hit in used):
            continue
        reasons = list(dict.fromkeys(hit.sentence for hit in rejected if hit.name in names))
        more = f"; and {len(reasons) - _MAX_REASONS} more" if len(reasons) > _MAX_REASONS else ""
        sentences.append(f"{printable(str(path))} gives no template: {'; '.join(reasons[:_MAX_REASONS])}{more}")
    return tuple(sentences)


def _files(sources: Sequence[str | os.PathLike[str]], rejected: list[RejectedHit]) -> Iterator[Path]:
    """Yield each structure file of some files and directories once, sorted by name within a directory."""
    seen: set[str] = set()
    for path in map(Path, sources):
        with os_errors_as_input_errors(path, "cannot be listed"):
            inside = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in inside:
            # A file that the user passes is read whatever its suffix is.
            if file != path and (os.path.isdir(file) or not is_structure_name(file.name)):
                kind = "a directory, not a file" if os.path.isdir(file) else "not named as a structure file"
                rejected.append(RejectedHit.of(printable(file.name), RejectionReason.NOT_A_STRUCTURE, f"it is {kind}"))
            elif os.path.abspath(file) not in seen:
                seen.add(os.path.abspath(file))
                yield file


def _candidates(
    query: str, stem: str, structure: Structure, options: UserTemplateOptions, rejected: list[RejectedHit]
) -> Iterator[_Candidate]:
    """Yield a candidate for each usable chain of a structure; add the other chains to `rejected`."""
    best: dict[str, Chain] = {}
    for chain in sorted(structure.chains, key=lambda chain: -chain.atom_mask.sum()):  # stable
        best.setdefault(chain.sequence, chain)
    for chain in structure.chains:
        name = f"{stem}_{printable(chain.name)}"
        try:
            if best[chain.sequence] is not chain:
                other = printable(best[chain.sequence].name)
                raise UnusableHitError(
                    RejectionReason.REPEATED, f"chain {other} of the file has the same sequence and no fewer atoms"
                )
            yield _candidate(query, name, structure, chain, options)
        except UnusableHitError as problem:
            rejected.append(RejectedHit.of(name, problem.reason, problem.sentence))
    for chain_name, why in structure.skipped.items():
        rejected.append(RejectedHit.of(f"{stem}_{printable(chain_name)}", RejectionReason.NO_CHAIN, printable(why)))


def _candidate(query: str, name: str, structure: Structure, chain: Chain, options: UserTemplateOptions) -> _Candidate:
    """Align one chain to the target; raise `UnusableHitError` if it is not usable as a template."""
    check_structure_date(structure, structure.name, None, options.latest_release)
    alignment = align("local", query, chain.sequence)
    partner = alignment.partner
    aligned = int(np.sum(partner >= 0))
    e_value = alignment.e_value(len(chain.sequence))
    if e_value > options.max_e_value:
        problem = f"{aligned} of its residues can be aligned to the target, no better than by chance"
        limit = f"E-value {e_value:.1g}, at most {options.max_e_value:g} is allowed"
        raise UnusableHitError(RejectionReason.UNRELATED, f"{problem} ({limit})")
    if aligned < options.min_residues:
        raise UnusableHitError(
            RejectionReason.SHORT, f"{aligned} residues are aligned, and {options.min_residues} are needed"
        )
    if aligned / len(query) <= options.min_coverage:
        limit = f"more than {options.min_coverage:.0%} is needed"
        raise UnusableHitError(
            RejectionReason.COVERAGE, f"it is aligned to {aligned / len(query):.1%} of the target, and {limit}"
        )
    check_distances(chain)
    letters = "".join(chain.sequence[index] if index >= 0 else "-" for index in partner)
    template = aligned_template(chain, partner, letters, name=name)
    check_atoms(template)
    share = identity(query, np.array(list(letters)))
    doubt = f"only {share:.0%} of the aligned residues are the target's, the alignment may be wrong in places"
    description = UsedTemplate(
        name=name,
        rank=0,
        release_date=structure.release_date,
        aligned=int(np.sum(template.masks.any(axis=1))),
        identity=share,
        note=doubt if share < _DOUBTFUL_IDENTITY else "",
    )
    return _Candidate(score=alignment.score, template=template, description=description)


def _stem(path: Path) -> str:
    """Return the file name without suffixes, because the entry id may not be unique among files."""
    return printable(without_suffix(path, STRUCTURE_SUFFIXES))
