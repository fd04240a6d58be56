"""Make a complex's features from its own files and from searches for each of its different sequences."""

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
from data_pipeline.parse.a3m import Alignment
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.pipeline import (
    FoundHomologs,
    PreparedTarget,
    find_homologs,
    prepare,
    search_homologs,
    template_notes,
)
from data_pipeline.search.plan import SearchPlan


@dataclass(frozen=True, kw_only=True)
class PreparedComplex:
    """Features of a complex, with what was found for each of its sequences, by the first chain that has it."""

    features: ComplexFeatureSet
    found: Mapping[str, FoundHomologs]
    notes: tuple[str, ...] = ()  # about the user's templates that are not used


def prepare_complex(
    given: ComplexInput, plan: SearchPlan | None = None, results: Path | None = None
) -> PreparedComplex:
    """Run the searches of a complex and return its features.

    Each different sequence is searched once, and its results are stored in the directories that `given` names, most of
    them below `results`. Rows are paired as the user's files pair them, or else by the species in the names of all
    rows. Raise `InputError` for wrong input, `SearchError` if a tool fails, and `ValueError` for searches without
    `results`.
    """
    plan = plan or SearchPlan()
    entities, chain_plan = given.target.entities, given.needed(plan).of_chains()
    places = [None] * len(entities) if results is None else given.search_directories(results)
    found = {
        entity.chain_ids[0]: find_homologs(given.chain(entity), chain_plan, place)
        for entity, place in zip(entities, places, strict=True)
    }
    alignments = _with_pairs(given, _alignments(given, found), plan, results)
    return PreparedComplex(
        features=ComplexFeatureSet.of(given.target, alignments, given.pair_mode),
        found=found,
        notes=template_notes(given.templates, found.values(), warn=results is None),
    )


def target_features(target: AnyTarget, plan: SearchPlan | None = None, results: Path | None = None) -> TargetFeatures:
    """Return the features of a single chain or of a complex; see `prepare` and `prepare_complex`."""
    return prepare_any(target, plan, results).features


def prepare_any(
    target: AnyTarget, plan: SearchPlan | None = None, results: Path | None = None
) -> PreparedTarget | PreparedComplex:
    """Prepare a single chain or a complex; see `prepare` and `prepare_complex`."""
    if isinstance(target, ComplexInput):
        return prepare_complex(target, plan, results)
    return prepare(target, plan, results)


def _alignments(given: ComplexInput, found: Mapping[str, FoundHomologs]) -> Iterator[EntityAlignment]:
    """Yield the alignments of each sequence of a complex, from its files and from what was found for its chains."""
    whole: dict[str, EntityAlignment] = {}
    if given.a3m is not None:
        whole = {each.sequence: each for each in read_complex_a3m(given.a3m).entities}
    for entity in given.target.entities:
        files, own, of_all = given.files_of(entity), found[entity.chain_ids[0]], whole.get(entity.sequence)
        rows = [] if of_all is None or of_all.unpaired is None else [of_all.unpaired]
        paired, uniprot = (
            None if path is None else read_alignment(path, entity.sequence) for path in (files.paired, files.uniprot)
        )
        yield EntityAlignment(
            sequence=entity.sequence,
            unpaired=_joined([*rows, *own.alignments.values()]),
            paired=paired if of_all is None else of_all.paired,
            uniprot=uniprot,
            templates=own.template_features,
        )


def _with_pairs(
    given: ComplexInput, alignments: Iterable[EntityAlignment], plan: SearchPlan, results: Path | None
) -> list[EntityAlignment]:
    """Return the alignments with the rows that are to be paired, unless files have paired rows already.

    They are those of the search for pairs, or else those of the search in UniProt, or else all rows that there are, if
    any is named after a species.
    """
    alignments, needed = list(alignments), given.needed(plan)
    sequences = [entity.sequence for entity in given.target.entities]
    if any(each.paired is not None or each.uniprot is not None for each in alignments):
        return alignments
    if needed.pairing is not None and results is not None:
        pairs = paired_alignments(sequences, needed.pairing, given.pair_directories(results))
        return [replace(each, paired=rows) for each, rows in zip(alignments, pairs, strict=True)]
    if plan.pairing is not None:
        # Rows of a server are taken as they stand, as ColabFold does, and that is what paired rows say.
        return [replace(each, paired=single_sequence(each.sequence)) for each in alignments]
    if needed.uniprot is not None and results is not None:
        places = zip(sequences, given.search_directories(results), strict=True)
        hits = [search_homologs(sequence, needed.uniprot, place)[1] for sequence, place in places]
        found = (PairingRows.of(*each).species for each in zip(sequences, hits, strict=True))
        if given.pair_mode != "paired" and not any(map(any, found)):
            return alignments  # nothing to be paired was found: the complex is folded without, as in AlphaFold
        return [replace(each, uniprot=rows) for each, rows in zip(alignments, hits, strict=True)]
    is_paired = len(sequences) > 1 and given.pair_mode != "unpaired"
    return _paired_by_names(given, alignments) if is_paired else alignments


def _paired_by_names(given: ComplexInput, alignments: list[EntityAlignment]) -> list[EntityAlignment]:
    """Return the alignments with all their rows to be paired by species, if any row is named after one."""
    names = (name for each in alignments if each.unpaired is not None for name in each.unpaired.names)
    if given.pair_mode != "paired" and not any(map(species_of, names)):
        return alignments
    # Without a species in any row, the mode asks for what is not there, and `chains_of` says so.
    return [replace(each, uniprot=each.unpaired or single_sequence(each.sequence)) for each in alignments]


def _joined(alignments: Sequence[Alignment]) -> Alignment | None:
    """Return the rows of all alignments with the sequence itself once, or None if there is no alignment."""
    if len(alignments) < 2:
        return alignments[0] if alignments else None
    first, *others = alignments
    return Alignment(
        names=(*first.names, *(name for each in others for name in each.names[1:])),
        letters=np.concatenate([first.letters, *(each.letters[1:] for each in others)]),
        deletion_matrix=np.concatenate([first.deletion_matrix, *(each.deletion_matrix[1:] for each in others)]),
    )
