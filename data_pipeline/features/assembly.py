"""Merge the features of the chains of a complex, with paired rows side by side and other rows in blocks.

AlphaFold-Multimer (Evans et al. 2022), Suppl. Sec. 7.2, with the limits of AlphaFold 2.3: `MAX_ROWS` alignment rows of
each chain, at most half of them paired, and `MAX_TEMPLATES` templates of each chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.features.pairing import PairedRows, PairingRows, pair_rows
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from data_pipeline.residues import GAP

# Max rows of the alignment of a chain; at most half of them are paired.
MAX_ROWS = 2048
# Max templates of each chain.
MAX_TEMPLATES = 4


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A chain of a complex: its name (chain ID), its features, and its rows for pairing with other chains.

    `pairing` has rows to be paired by species, or rows that a search has already paired, which all chains must have in
    equal number. Without it, only the chain itself is paired.
    """

    name: str
    features: Features
    pairing: PairingRows | PairedRows | None = None


@dataclass(frozen=True, kw_only=True)
class ComplexFeatures:
    """Features of a complex, from which the model's inputs are sampled; names are AlphaFold-Multimer's.

    Chains with the same sequence are neighbours, ordered by the first occurrence of the sequence; residues are numbered
    within each chain. Axes: `r` residues of all chains, `n` rows of the MSA, `t` template slots.

    `asym_id` numbers the chains, `entity_id` the distinct sequences and `sym_id` the chains of each sequence, all from
    1. `paired_rows` is the number of paired rows; these are first in `msa`, and row 0 is the complex itself.
    `bert_mask` is False in the columns of other chains next to a block of unpaired rows. `template_names` has the names
    in the slots of each chain; `template_spans_chains` is True for slots whose template shows how chains are arranged.
    """

    chain_names: tuple[str, ...]  # by `asym_id` - 1
    aatype: Int[np.ndarray, "r"]
    residue_index: Int[np.ndarray, "r"]
    asym_id: Int[np.ndarray, "r"]  # number of the chain in the complex, from 1
    entity_id: Int[np.ndarray, "r"]  # number of the chain's sequence, from 1
    sym_id: Int[np.ndarray, "r"]  # number of the chain among chains with the same sequence, from 1
    msa: Int[np.ndarray, "n r"]  # first the paired rows (row 0 is the complex itself), then blocks of other rows
    deletion_matrix: Int[np.ndarray, "n r"]
    bert_mask: Bool[np.ndarray, "n r"]  # where residues may be masked for the masked-MSA head: not outside the blocks
    paired_rows: int
    template_aatype: Int[np.ndarray, "t r"]
    template_all_atom_positions: Float[np.ndarray, "t r 37 3"]  # Å
    template_all_atom_masks: Float[np.ndarray, "t r 37"]
    # Template names ("1abc_A") in the slots of each chain, "" for empty slots; an empty tuple if the names are unknown.
    template_names: tuple[tuple[str, ...], ...] = ()
    # Whether the template of each slot shows how its chains are arranged; an empty tuple if none does.
    template_spans_chains: tuple[bool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ChainNumbers:
    """The numbers of each residue's chain, sequence and copy of this sequence, from 1; see `ComplexFeatures`."""

    asym_id: Int[np.ndarray, "r"]
    entity_id: Int[np.ndarray, "r"]
    sym_id: Int[np.ndarray, "r"]

    @classmethod
    def of(cls, sequences: Sequence[str]) -> "ChainNumbers":
        """Return the chain numbers of residues in chains with these sequences, in this order."""
        lengths = list(map(len, sequences))
        entities = {sequence: entity for entity, sequence in enumerate(dict.fromkeys(sequences), start=1)}
        copies = [list(sequences[: place + 1]).count(sequence) for place, sequence in enumerate(sequences)]
        return cls(
            asym_id=np.repeat(np.arange(1, len(lengths) + 1), lengths).astype(np.int32),
            entity_id=np.repeat([entities[sequence] for sequence in sequences], lengths).astype(np.int32),
            sym_id=np.repeat(copies, lengths).astype(np.int32),
        )


def complex_features(
    chains: Sequence[Chain], *, max_rows: int = MAX_ROWS, max_templates: int = MAX_TEMPLATES
) -> ComplexFeatures:
    """Return the features of a complex of these chains.

    Chains with different sequences are paired by species, or as paired by a search; chains with the same sequence are
    side by side row by row. `max_rows` limits the non-empty rows of each chain, and half of it the paired rows;
    `max_templates` is the number of template slots, which are zeros without a template. Raise `InputError` without
    chains, if chains with the same sequence have different alignments, or if only some chains have rows paired by a
    search or their numbers differ.
    """
    if not chains:
        raise InputError("a complex must have at least one chain")
    entities: dict[str, list[Chain]] = {}
    for chain in chains:
        entities.setdefault(chain.features.sequence, []).append(chain)
    ordered = [chain for copies in entities.values() for chain in copies]
    copies = [len(each) for each in entities.values()]
    numbers = ChainNumbers.of([chain.features.sequence for chain in ordered])
    for group in entities.values():
        _require_equal_alignments(group)
    rows = [_Rows.of(chain) for chain in ordered]
    if len(entities) > 1:
        rows = _paired(ordered, rows)
    rows = [each.cropped(max_rows) for each in rows]
    msa, deletion_matrix, bert_mask = _merged(rows, copies)
    templates = [_template_slots(chain.features, max_templates) for chain in ordered]
    return ComplexFeatures(
        chain_names=tuple(chain.name for chain in ordered),
        aatype=np.concatenate([chain.features.aatype for chain in ordered]),
        residue_index=np.concatenate([chain.features.residue_index for chain in ordered]),
        asym_id=numbers.asym_id,
        entity_id=numbers.entity_id,
        sym_id=numbers.sym_id,
        msa=msa,
        deletion_matrix=deletion_matrix,
        bert_mask=bert_mask,
        paired_rows=len(rows[0].paired),
        template_aatype=np.concatenate([each[0] for each in templates], axis=1),
        template_all_atom_positions=np.concatenate([each[1] for each in templates], axis=1),
        template_all_atom_masks=np.concatenate([each[2] for each in templates], axis=1),
        template_names=tuple(_names_of_slots(chain.features, max_templates) for chain in ordered),
    )


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The paired and unpaired rows of a chain's alignment, with their deletions."""

    paired: Int[np.ndarray, "p r"]
    paired_deletions: Int[np.ndarray, "p r"]
    others: Int[np.ndarray, "n r"]
    other_deletions: Int[np.ndarray, "n r"]

    @classmethod
    def of(cls, chain: Chain) -> "_Rows":
        msa, deletions = chain.features.msa, chain.features.deletion_matrix
        return cls(paired=msa[:0], paired_deletions=deletions[:0], others=msa, other_deletions=deletions)

    def cropped(self, max_rows: int) -> "_Rows":
        """Return the first rows: up to `max_rows` / 2 paired ones, and `max_rows` non-empty ones in total."""
        paired = min(len(self.paired), max_rows // 2)
        filled = int((self.paired[:paired] != GAP).any(axis=1).sum())
        others = min(len(self.others), max(max_rows - filled, 0))
        return _Rows(
            paired=self.paired[:paired],
            paired_deletions=self.paired_deletions[:paired],
            others=self.others[:others],
            other_deletions=self.other_deletions[:others],
        )


def _paired(chains: Sequence[Chain], rows: Sequence[_Rows]) -> list[_Rows]:
    """Return the rows of each chain with its pairs, and without other rows that are among the pairs.

    With pairs from a search, these other rows remain, as in ColabFold.
    """
    rows_of_chains: list[_Rows] = []
    for chain, own, pairs in zip(chains, rows, paired_rows(chains), strict=True):
        unpaired = np.arange(len(own.others))
        if not isinstance(chain.pairing, PairedRows):
            pair_set = {row.tobytes() for row in np.ascontiguousarray(pairs.msa, np.int8)}
            others = np.ascontiguousarray(own.others, np.int8)
            unpaired = np.array([row for row, each in enumerate(others) if each.tobytes() not in pair_set], np.intp)
        rows_of_chains.append(
            _Rows(
                paired=pairs.msa,
                paired_deletions=pairs.deletion_matrix,
                others=own.others[unpaired],
                other_deletions=own.other_deletions[unpaired],
            )
        )
    return rows_of_chains


def paired_rows(chains: Sequence[Chain]) -> list[PairedRows]:
    """Return the paired rows of each chain, as paired by a search, or else paired by species.

    For the latter, a chain without rows for pairing only has itself. Raise `InputError` if only some of the chains have
    rows paired by a search, or different numbers of them.
    """
    search_pairs = [chain.pairing for chain in chains if isinstance(chain.pairing, PairedRows)]
    if search_pairs:
        if len(search_pairs) < len(chains):
            raise InputError("only some chains have rows paired by a search; pass such rows for all chains or for none")
        if len(counts := {len(rows.msa): None for rows in search_pairs}) > 1:
            numbers = " and ".join(f"{count:,}" for count in counts)
            raise InputError(f"chains have {numbers} paired rows; pass the same number of rows for all chains")
        return search_pairs
    pairing = [
        chain.pairing if isinstance(chain.pairing, PairingRows) else _only_itself(chain.features) for chain in chains
    ]
    return [rows.select(pairs) for rows, pairs in zip(pairing, pair_rows(pairing).T, strict=True)]


def _only_itself(features: Features) -> PairingRows:
    """Return pairing rows with only the chain's own sequence, of no species."""
    return PairingRows(msa=features.msa[:1], deletion_matrix=features.deletion_matrix[:1], species=("",))


def _merged(
    rows: Sequence[_Rows], copies: Sequence[int]
) -> tuple[Int[np.ndarray, "n r"], Int[np.ndarray, "n r"], Bool[np.ndarray, "n r"]]:
    """Return the MSA, the deletions and the mask of the blocks; `copies` is the number of chains of each sequence."""
    starts = np.cumsum([0, *copies])
    groups = [rows[start:stop] for start, stop in pairwise(starts)]
    heights = [len(group[0].others) for group in groups]
    shape = len(rows[0].paired) + sum(heights), sum(each.others.shape[1] for each in rows)
    msa = np.full(shape, GAP, np.int8)
    deletions = np.zeros(
        shape, np.result_type(*(each.other_deletions for each in rows), *(each.paired_deletions for each in rows))
    )
    mask = np.zeros(shape, np.bool_)
    paired = len(rows[0].paired)
    mask[:paired] = True
    top = paired
    left = 0
    for group, height in zip(groups, heights, strict=True):
        for chain in group:
            columns = slice(left, left + chain.others.shape[1])
            block = slice(top, top + height)
            msa[:paired, columns], deletions[:paired, columns] = chain.paired, chain.paired_deletions
            msa[block, columns], deletions[block, columns] = chain.others, chain.other_deletions
            mask[block, columns] = True
            left = columns.stop
        top += height
    return msa, deletions, mask


def _template_slots(
    features: Features, slots: int
) -> tuple[Int[np.ndarray, "t r"], Float[np.ndarray, "t r 37 3"], Float[np.ndarray, "t r 37"]]:
    """Return the first templates of a chain, padded with zeros to `slots` templates."""
    arrays = features.template_aatype, features.template_all_atom_positions, features.template_all_atom_masks
    padded = []
    for array in arrays:
        padded_array = np.zeros((slots, *array.shape[1:]), array.dtype)
        padded_array[: len(array)] = array[:slots]
        padded.append(padded_array)
    return padded[0], padded[1], padded[2]


def _names_of_slots(features: Features, slots: int) -> tuple[str, ...]:
    """Return the names of the first templates, with "" for each of `slots` that is empty."""
    names = features.template_domain_names[:slots]
    return (*names, *[""] * (slots - len(names)))


def _require_equal_alignments(copies: Sequence[Chain]) -> None:
    """Raise `InputError` unless all chains, which have the same sequence, have the same alignment."""
    first = copies[0]
    for chain in copies[1:]:
        if not np.array_equal(chain.features.msa, first.features.msa):
            raise InputError(
                f"chains {first.name} and {chain.name} have the same sequence but different alignments; pass the "
                "same alignment for both"
            )
