"""Compute the features of a complex from the user's files and from searches with its distinct sequences."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data_pipeline.features.complexes.alignments import EntityAlignment
from data_pipeline.features.complexes.colabfold_a3m import read_complex_a3m
from data_pipeline.features.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet, TargetFeatures
from data_pipeline.features.complexes.paired_search import paired_alignments
from data_pipeline.features.msa import single_sequence
from data_pipeline.features.pairing import PairingRows, species_of
from data_pipeline.features.templates import AlignedTemplate
from data_pipeline.io.errors import printable
from data_pipeline.parse.a3m import Alignment
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.pipeline import (
    Homologs,
    PreparedTarget,
    file_notes,
    find_homologs,
    prepare,
    search_homologs,
)
from data_pipeline.search.plan import SearchPlan
from data_pipeline.templates.from_files import templates_of_chains


@dataclass(frozen=True, kw_only=True)
class PreparedComplex:
    """Features of a complex, with the alignments and templates of each distinct sequence by the ID of its first chain.

    `notes` are sentences about template files without a usable template, and about templates across chains.
    """

    features: ComplexFeatureSet
    homologs: Mapping[str, Homologs]
    notes: tuple[str, ...] = ()  # about the user's files


def prepare_complex(
    complex_input: ComplexInput, plan: SearchPlan | None = None, results: Path | None = None
) -> PreparedComplex:
    """Run the searches of a complex and return its features.

    Each distinct sequence is searched once, and the results are stored below `results` or in the shared directories of
    `complex_input`. Rows are paired as in the user's files, else as in the plan's search for pairs. Otherwise they are
    paired by the species in the names of the rows of its UniProt search, or of all rows without this search. Raise
    `InputError` for invalid input, `SearchError` if a tool fails, and `ValueError` for searches without `results`.
    """
    plan = plan or SearchPlan()
    entities, chain_plan = complex_input.target.entities, complex_input.needed(plan).of_chains()
    places = [None] * len(entities) if results is None else complex_input.search_directories(results)
    homologs = {
        entity.chain_ids[0]: find_homologs(complex_input.chain(entity), chain_plan, place)
        for entity, place in zip(entities, places, strict=True)
    }
    alignments = _with_pairs(complex_input, _alignments(complex_input, homologs), plan, results)
    features = ComplexFeatureSet.of(complex_input.target, alignments, complex_input.pair_mode)
    notes = file_notes(complex_input.templates, homologs.values(), warn=results is None)
    if paths := complex_input.cross_chain_templates:
        options = complex_input.chain(entities[0]).dated(plan).user_templates
        sequences = dict(zip(features.multimer.chain_names, features.chain_sequences, strict=True))
        templates = [templates_of_chains(sequences, path, options) for path in paths]
        features = features.with_templates_across_chains(templates)
        notes = (*notes, *map(_arrangement, paths, templates))
    return PreparedComplex(features=features, homologs=homologs, notes=notes)


def _arrangement(path: Path, templates: Mapping[str, AlignedTemplate]) -> str:
    """Return a sentence with the chains that a template arranges."""
    pairs = ", ".join(f"{chain} like {each.name}" for chain, each in templates.items())
    return f"{printable(str(path))} is a template across chains: {pairs}"


def target_features(target: AnyTarget, plan: SearchPlan | None = None, results: Path | None = None) -> TargetFeatures:
    """Return the features of a single chain or of a complex; see `prepare` and `prepare_complex`."""
    return prepare_any(target, plan, results).features


def prepare_any(
    target: AnyTarget, plan: SearchPlan | None = None, results: Path | None = None
) -> PreparedTarget | PreparedComplex:
    """Compute the features of a single chain or a complex, with notes; see `prepare` and `prepare_complex`."""
    if isinstance(target, ComplexInput):
        return prepare_complex(target, plan, results)
    return prepare(target, plan, results)


def _alignments(complex_input: ComplexInput, homologs: Mapping[str, Homologs]) -> Iterator[EntityAlignment]:
    """Yield the alignments of each sequence of a complex, from its files and its search results."""
    whole: dict[str, EntityAlignment] = {}
    if complex_input.a3m is not None:
        whole = {each.sequence: each for each in read_complex_a3m(complex_input.a3m).entities}
    for entity in complex_input.target.entities:
        files, homologs_of_entity, of_all = (
            complex_input.files_of(entity),
            homologs[entity.chain_ids[0]],
            whole.get(entity.sequence),
        )
        rows = [] if of_all is None or of_all.unpaired is None else [of_all.unpaired]
        paired, uniprot = (
            None if path is None else read_alignment(path, entity.sequence) for path in (files.paired, files.uniprot)
        )
        yield EntityAlignment(
            sequence=entity.sequence,
            unpaired=_joined([*rows, *homologs_of_entity.alignments.values()]),
            paired=paired if of_all is None else of_all.paired,
            uniprot=uniprot,
            templates=homologs_of_entity.template_features,
        )


def _with_pairs(
    complex_input: ComplexInput, alignments: Iterable[EntityAlignment], plan: SearchPlan, results: Path | None
) -> list[EntityAlignment]:
    """Return the alignments with rows for pairing, unless files have paired rows already.

    These are the rows of the search for pairs, else the rows of the UniProt search, else all rows, if any has a
    species in its name.
    """
    alignments, needed = list(alignments), complex_input.needed(plan)
    sequences = [entity.sequence for entity in complex_input.target.entities]
    if any(each.paired is not None or each.uniprot is not None for each in alignments):
        return alignments
    if needed.pairing is not None and results is not None:
        pairs = paired_alignments(sequences, needed.pairing, complex_input.pair_directories(results))
        return [replace(each, paired=rows) for each, rows in zip(alignments, pairs, strict=True)]
    if plan.pairing is not None:
        # Rows of a server are used unchanged, as in ColabFold, which `paired` ensures.
        return [replace(each, paired=single_sequence(each.sequence)) for each in alignments]
    if needed.uniprot is not None and results is not None:
        places = zip(sequences, complex_input.search_directories(results), strict=True)
        hits = [search_homologs(sequence, needed.uniprot, place)[1] for sequence, place in places]
        species = (PairingRows.of(*each).species for each in zip(sequences, hits, strict=True))
        if complex_input.pair_mode != "paired" and not any(map(any, species)):
            return alignments  # without any species, the complex is predicted without pairs, as in AlphaFold
        return [replace(each, uniprot=rows) for each, rows in zip(alignments, hits, strict=True)]
    is_paired = len(sequences) > 1 and complex_input.pair_mode != "unpaired"
    return _paired_by_names(complex_input, alignments) if is_paired else alignments


def _paired_by_names(complex_input: ComplexInput, alignments: list[EntityAlignment]) -> list[EntityAlignment]:
    """Return the alignments with all rows to be paired by species, if any row has a species in its name."""
    names = (name for each in alignments if each.unpaired is not None for name in each.unpaired.names)
    if complex_input.pair_mode != "paired" and not any(map(species_of, names)):
        return alignments
    # If no row has a species in the mode "paired", `chains_of` raises an error.
    return [replace(each, uniprot=each.unpaired or single_sequence(each.sequence)) for each in alignments]


def _joined(alignments: Sequence[Alignment]) -> Alignment | None:
    """Return the rows of all alignments, with the sequence itself only once, or None without alignments."""
    if len(alignments) < 2:
        return alignments[0] if alignments else None
    first, *others = alignments
    return Alignment(
        names=(*first.names, *(name for each in others for name in each.names[1:])),
        letters=np.concatenate([first.letters, *(each.letters[1:] for each in others)]),
        deletion_matrix=np.concatenate([first.deletion_matrix, *(each.deletion_matrix[1:] for each in others)]),
    )
