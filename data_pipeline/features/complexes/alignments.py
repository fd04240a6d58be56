"""Alignments of the sequences of a complex, with paired and unpaired rows.

A `PairMode` is which of these rows are used: both kinds, only paired rows, or only unpaired rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from data_pipeline.features.assembly import Chain
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.features.monomer import monomer_features, numbered
from data_pipeline.features.msa import LETTER_TYPES, single_sequence
from data_pipeline.features.pairing import PairedRows, PairingRows
from data_pipeline.features.schema import Features
from data_pipeline.features.templates import TemplateFeatures
from data_pipeline.io.errors import InputError
from data_pipeline.parse.a3m import Alignment

# ColabFold's names for both kinds of rows, only paired rows, and only unpaired rows.
PairMode = Literal["unpaired_paired", "paired", "unpaired"]


@dataclass(frozen=True, kw_only=True)
class EntityAlignment:
    """Alignments of one sequence of a complex; the first row of each is the sequence itself, and None means no rows.

    Rows are paired either by a search (`paired`, with the same number of rows for all sequences) or by the species in
    the row names (`uniprot`). The constructor raises `InputError` if both are present.
    """

    sequence: str
    unpaired: Alignment | None = None
    paired: Alignment | None = None  # rows paired with the rows of the same index of the other sequences
    uniprot: Alignment | None = None  # rows to be paired by the species in their names
    templates: TemplateFeatures | None = None

    def __post_init__(self) -> None:
        if self.paired is not None and self.uniprot is not None:
            raise InputError("rows paired by a search cannot be combined with rows to be paired by species")

    def in_mode(self, mode: PairMode) -> "EntityAlignment":
        """Return the alignments with only the rows of a mode; raise `InputError` for an unknown mode.

        In the mode "unpaired", rows paired by a search are replaced by the sequence itself.
        """
        if mode not in get_args(PairMode):
            raise InputError(f"the pair mode must be one of {', '.join(get_args(PairMode))}, got '{mode}'")
        only_itself = single_sequence(self.sequence)
        return replace(
            self,
            unpaired=None if mode == "paired" else self.unpaired,
            paired=only_itself if mode == "unpaired" and self.paired is not None else self.paired,
            uniprot=None if mode == "unpaired" else self.uniprot,
        )


def chains_of(target: ComplexTarget, alignments: Iterable[EntityAlignment], mode: PairMode) -> list[Chain]:
    """Return the chains of a complex with their features, from the alignments of its distinct sequences.

    Rows paired by a search, and the other rows of such a complex, are used unchanged, including duplicates, as in
    ColabFold. Otherwise duplicates are removed, and rows are paired by species, as in AlphaFold. Raise `InputError` if
    a sequence has no alignment, or if rows are to be paired by species and no row has a species.
    """
    by_sequence = {each.sequence: each.in_mode(mode) for each in alignments}
    if missing := [each for each in target.entities if each.sequence not in by_sequence]:
        raise InputError(f"there is no alignment for chain {missing[0].chain_ids[0]} of complex '{target.name}'")
    pairing = {each.sequence: _pairing(each) for each in by_sequence.values()}
    if len(target.entities) > 1:
        _require_species(target, [pairing[each.sequence] for each in target.entities])
    features = {each.sequence: _features(target.name, each) for each in by_sequence.values()}
    return [
        Chain(
            name=identifier,
            features=replace(numbered(features[sequence], fragment), domain_name=f"{target.name}_{identifier}"),
            pairing=pairing[sequence],
        )
        for identifier, sequence, fragment in zip(
            target.chain_ids, target.sequences, target.fragments or ("",) * len(target.sequences), strict=True
        )
    ]


def _features(name: str, entity: EntityAlignment) -> Features:
    """Return features of one entity; if it has a paired alignment, all rows of the unpaired one are kept."""
    if entity.paired is None:
        return monomer_features(
            name, entity.sequence, () if entity.unpaired is None else [entity.unpaired], entity.templates
        )
    rows = _rows(entity.sequence, entity.unpaired or single_sequence(entity.sequence))
    features = monomer_features(name, entity.sequence, (), entity.templates)
    return replace(features, msa=rows.msa, deletion_matrix=rows.deletion_matrix)


def _pairing(entity: EntityAlignment) -> PairingRows | PairedRows | None:
    """Return the rows that are paired across chains: of the paired alignment, else of UniProt, else None."""
    if entity.paired is not None:
        return _rows(entity.sequence, entity.paired)
    return None if entity.uniprot is None else PairingRows.of(entity.sequence, entity.uniprot)


def _rows(sequence: str, alignment: Alignment) -> PairedRows:
    """Return all rows of an alignment, with the sequence itself first."""
    letters, deletions = alignment.letters, alignment.deletion_matrix
    own = single_sequence(sequence)
    if alignment.query != sequence:
        letters = np.concatenate([own.letters, letters])
        deletions = np.concatenate([np.zeros_like(deletions[:1]), deletions])
    return PairedRows(msa=LETTER_TYPES[letters], deletion_matrix=deletions)


def _require_species(target: ComplexTarget, pairing: Sequence[PairingRows | PairedRows | None]) -> None:
    """Raise `InputError` if rows are to be paired by species and no row has a species."""
    named = [each for each in pairing if isinstance(each, PairingRows)]
    if named and not any(any(each.species) for each in named):
        raise InputError(
            f"no row to be paired of complex '{target.name}' has a species in its name, as in "
            "'tr|A0A146SKV9|A0A146SKV9_FUNHE'; search UniProt, or predict without pairs"
        )
