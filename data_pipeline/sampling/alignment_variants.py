"""Vary the alignment of a target, so that predictions show alternative conformations.

A variant is a cluster of the rows (AF_Cluster, Wayment-Steele et al. 2024), the alignment with replaced residues in
some columns (SPEACH_AF, Stein and Mchaourab 2022), or fewer rows per recycling iteration (del Alamo et al. 2022).
`WHOLE_ALIGNMENT` is the variant that changes nothing.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from jaxtyping import Bool, Int8

from data_pipeline.features.complexes.chain_ids import ONLY_CHAIN
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet, TargetFeatures
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError, printable
from data_pipeline.residue_ranges import Replacement, ResidueRange
from data_pipeline.residues import GAP, RESTYPES, UNKNOWN
from data_pipeline.sampling.alignment_clusters import AlignmentClusters, ClusterSettings

_TYPE_OF_REPLACEMENT: dict[Replacement, int] = {"alanine": RESTYPES.index("A"), "unknown": UNKNOWN}
# Max length of a selection in the name of a variant; longer ones get a digest.
_MAX_NAME_LENGTH = 40


@dataclass(frozen=True, kw_only=True)
class AlignmentVariant:
    """A variant of a target's alignment; with the defaults, the whole alignment.

    `name` is part of file names; `description` identifies the variant of a target in all runs. `rows` are row indices
    with the target first; None: all. `columns` are residues that are replaced by `replacement` in all rows except the
    target. `max_msa_rows` (cluster centres) and `max_extra_rows` are per recycling iteration; None: as in the preset.
    """

    name: str = ""
    description: str = ""
    rows: tuple[int, ...] | None = None  # row indices with the target first; None: all
    columns: tuple[ResidueRange, ...] = ()  # columns with residues replaced in all rows except the target
    replacement: Replacement = "alanine"
    max_msa_rows: int | None = None  # cluster centres per recycling iteration; None: as in the model's preset
    max_extra_rows: int | None = None

    def of(self, features: TargetFeatures) -> TargetFeatures:
        """Return a target's features with the rows or replaced columns of this variant, and everything else unchanged.

        `max_msa_rows` and `max_extra_rows` do not change features. Raise `InputError` if a residue in `columns` is not
        in the target, and for `rows` of a complex.
        """
        if self.columns:
            mask = column_mask(features, self.columns)
            if isinstance(features, ComplexFeatureSet):
                multimer = replace(features.multimer, msa=_masked(features.multimer.msa, mask, self.replacement))
                gap = replace(features.residue_gap, msa=_masked(features.residue_gap.msa, mask, self.replacement))
                return replace(features, multimer=multimer, residue_gap=gap)
            return replace(features, msa=_masked(features.msa, mask, self.replacement))
        if self.rows is not None:
            rows = list(self.rows)
            chain = single_chain(features)
            return replace(chain, msa=chain.msa[rows], deletion_matrix=chain.deletion_matrix[rows])
        return features


WHOLE_ALIGNMENT: Final = AlignmentVariant()


@dataclass(frozen=True, kw_only=True)
class VariantSettings:
    """The variants of the alignment to predict from, in addition to the whole alignment.

    Each item of `columns` is a variant with these columns replaced, and each item of `depths` (numbers of MSA rows and
    extra rows) a variant with fewer rows. `window` is the size and step, in residues, of a window that slides along the
    target; each position is a variant. `clusters` are the settings of one variant per cluster.
    """

    clusters: ClusterSettings | None = None
    columns: tuple[tuple[ResidueRange, ...], ...] = ()  # one variant each
    window: tuple[int, int] | None = None  # size and step in residues of a window that slides along the target
    replacement: Replacement = "alanine"
    depths: tuple[tuple[int, int], ...] = ()  # MSA rows and extra rows per recycling iteration; one variant each

    @property
    def is_empty(self) -> bool:
        """Return whether there is only the whole alignment."""
        return self == VariantSettings(replacement=self.replacement)

    def without_clusters(self, chain_lengths: Sequence[int], chain_names: Sequence[str]) -> list[AlignmentVariant]:
        """Return all variants of a target except clusters: the whole alignment, replaced columns, then fewer rows.

        `chain_lengths` are numbers of residues.
        """
        windows = [] if self.window is None else _windows(chain_lengths, chain_names, *self.window)
        masked = [masked_columns(ranges, self.replacement) for ranges in dict.fromkeys([*self.columns, *windows])]
        return [WHOLE_ALIGNMENT, *masked, *(shallow(*depth) for depth in dict.fromkeys(self.depths))]


def masked_columns(ranges: Sequence[ResidueRange], replacement: Replacement) -> AlignmentVariant:
    """Return the variant with replaced residues in these columns."""
    words = ",".join(map(str, ranges))
    name = words.replace(",", "_").replace(":", "")
    if len(name) > _MAX_NAME_LENGTH:
        name = f"{name[: name.index('_')]}_{hashlib.sha256(words.encode()).hexdigest()[:8]}"
    return AlignmentVariant(
        name=f"{replacement}_{name}",
        description=f"{replacement} at {words}",
        columns=tuple(ranges),
        replacement=replacement,
    )


def shallow(rows: int, extra_rows: int) -> AlignmentVariant:
    """Return the variant with at most `rows` cluster centres and `extra_rows` per recycling iteration."""
    return AlignmentVariant(
        name=f"msa_{rows}_{extra_rows}",
        description=f"at most {rows} rows and {extra_rows} extra rows",
        max_msa_rows=rows,
        max_extra_rows=extra_rows,
    )


def cluster_variant(settings: ClusterSettings, index: int, rows: Sequence[int] | None = None) -> AlignmentVariant:
    """Return the variant with the rows of the cluster `index` (from 0); without `rows`, it only names the cluster."""
    return AlignmentVariant(
        name=f"cluster_{index:03d}",
        description=f"cluster {index} ({settings})",
        rows=None if rows is None else tuple(rows),
    )


def cluster_variants(settings: ClusterSettings, clusters: AlignmentClusters) -> Iterator[AlignmentVariant]:
    """Yield the variant of each cluster, with the target as its first row; rows without a cluster have no variant."""
    for index in range(clusters.count):
        yield cluster_variant(settings, index, clusters.rows(index).tolist())


def single_chain(features: TargetFeatures) -> Features:
    """Return the features of a single chain; raise `InputError` for a complex, whose rows cannot be clustered."""
    if isinstance(features, ComplexFeatureSet):
        raise InputError(
            f"{printable(features.domain_name)} is a complex, but --cluster-msa is only supported for single chains; "
            "remove it, or predict the chains one by one"
        )
    return features


def column_mask(features: TargetFeatures, ranges: Sequence[ResidueRange]) -> Bool[np.ndarray, "r"]:
    """Return a mask of a target's residues in these ranges.

    Raise `InputError` for residues or chains that it does not have, and for a range without a chain in a complex.
    """
    lengths, names = chains_of(features)
    starts = dict(zip(names, np.cumsum([0, *lengths]).tolist(), strict=False))
    sizes = dict(zip(names, lengths, strict=True))
    mask = np.zeros(sum(lengths), bool)
    for each in ranges:
        if each.chain is None and len(names) > 1:
            raise InputError(f"--mask-columns {each} needs a chain for a complex, such as {names[0]}:{each}")
        chain = names[0] if each.chain is None else each.chain
        if chain not in sizes:
            raise InputError(f"--mask-columns {each} has an unknown chain; the chains are {', '.join(names)}")
        if each.last > sizes[chain]:
            raise InputError(f"--mask-columns {each} is beyond the last residue, {sizes[chain]}")
        mask[starts[chain] + each.first - 1 : starts[chain] + each.last] = True
    return mask


def chains_of(features: TargetFeatures) -> tuple[list[int], list[str]]:
    """Return the number of residues and the name of each chain of a target."""
    if isinstance(features, ComplexFeatureSet):
        return [len(each) for each in features.chain_sequences], list(features.multimer.chain_names)
    return [len(features.aatype)], [ONLY_CHAIN]


def _windows(lengths: Sequence[int], names: Sequence[str], size: int, step: int) -> Iterator[tuple[ResidueRange, ...]]:
    """Yield windows that slide along each chain; the last one ends with the chain."""
    for length, name in zip(lengths, names, strict=True):
        last_start = max(1, length - size + 1)
        for start in dict.fromkeys([*range(1, last_start + 1, step), last_start]):
            chain = None if len(names) == 1 else name
            yield (ResidueRange(first=start, last=min(length, start + size - 1), chain=chain),)


def _masked(msa: Int8[np.ndarray, "n r"], columns: Bool[np.ndarray, "r"], kind: Replacement) -> Int8[np.ndarray, "n r"]:
    """Return an alignment with replaced residues in these columns; gaps and the target row are unchanged."""
    # Differs from SPEACH_AF, which also replaces residues of the target, because the target is predicted here.
    replaced = columns & (msa != GAP)
    replaced[0] = False
    return np.where(replaced, msa.dtype.type(_TYPE_OF_REPLACEMENT[kind]), msa)
