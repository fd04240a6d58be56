"""Make the variants of a target's alignment to predict from (subsamples, masks, clusters), and write tables of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.feature_set import TargetFeatures, alignment_of
from data_pipeline.io.errors import InputError
from data_pipeline.io.extras import require
from data_pipeline.residue_ranges import read_depth, read_ranges, read_window
from data_pipeline.residues import GAP
from data_pipeline.sampling.alignment_clusters import (
    LEFT_OUT,
    NO_CLUSTER,
    AlignmentClusters,
    ClusterSettings,
    cluster_alignment,
)
from data_pipeline.sampling.alignment_variants import (
    AlignmentVariant,
    VariantSettings,
    cluster_variant,
    cluster_variants,
    column_mask,
    single_chain,
)
from helixfold.apps.options import ConformationOptions
from helixfold.apps.predict.jobs import Job
from helixfold.apps.predict.record import ClusterRecord
from helixfold.results.file_table import CLUSTERS_TABLE, VARIANTS_TABLE
from helixfold.results.writing import rounded, tab_separated, write_file

Value = TypeVar("Value")
_UNCLUSTERED_NAMES = {NO_CLUSTER: "none", LEFT_OUT: "left out"}


def variant_settings(options: ConformationOptions) -> VariantSettings:
    """Return the settings of the variants for some options.

    Raise `InputError` for contradictory or unreadable options, or if scikit-learn is missing for --cluster-msa.
    """
    defaults = ConformationOptions()
    for name in ("cluster_eps", "cluster_min_samples", "cluster_max_gaps"):
        if not options.cluster_msa and getattr(options, name) != getattr(defaults, name):
            raise InputError(f"--{name.replace('_', '-')} needs --cluster-msa; pass that too, or leave it out")
    if options.mask_with != defaults.mask_with and not (options.mask_columns or options.mask_window):
        raise InputError("--mask-with needs --mask-columns or --mask-window; pass one of them, or leave it out")
    clusters = ClusterSettings(
        eps=options.cluster_eps, min_samples=options.cluster_min_samples, max_gaps=options.cluster_max_gaps
    )
    if options.cluster_msa:
        require("conformations", "sklearn", action="--cluster-msa")
    return VariantSettings(
        clusters=clusters if options.cluster_msa else None,
        columns=tuple(_read("--mask-columns", read_ranges, word) for word in options.mask_columns),
        window=None if options.mask_window is None else _read("--mask-window", read_window, options.mask_window),
        replacement=options.mask_with,
        depths=tuple(
            _read("--subsample-msa", read_depth, word) for words in options.subsample_msa for word in words.split(",")
        ),
    )


def _read(option: str, read: Callable[[str], Value], word: str) -> Value:
    """Parse a word of an option by `read`; raise `InputError` with the name of the option if this fails."""
    try:
        return read(word)
    except ValueError as error:
        raise InputError(f"{option} {error}") from None


@dataclass(frozen=True, kw_only=True)
class TargetVariants:
    """The variants of a target's alignment, and the record of the clusters among them."""

    variants: Sequence[AlignmentVariant]
    clusters: ClusterRecord | None = None


def expected_variants(settings: VariantSettings, job: Job, clusters: ClusterRecord | None) -> TargetVariants:
    """Return the variants of a target that are known without its alignment.

    `clusters` is the record of an earlier run, if any. Without it, the number of clusters is None in the result.
    """
    lengths = [len(chain) for chain in job.sequence.split(CHAIN_SEPARATOR)]
    variants = settings.without_clusters(lengths, job.chain_ids)
    if settings.clusters is None:
        return TargetVariants(variants=variants)
    if clusters is None or clusters.settings != str(settings.clusters) or clusters.count is None:
        return TargetVariants(variants=variants, clusters=ClusterRecord(settings=str(settings.clusters)))
    of_clusters = [cluster_variant(settings.clusters, index) for index in range(clusters.count)]
    return TargetVariants(variants=[*variants, *of_clusters], clusters=clusters)


def find_variants(
    settings: VariantSettings, job: Job, features: TargetFeatures, directory: Path | None
) -> TargetVariants:
    """Return the variants of a target's alignment, and write tables of them into `directory` if it is not None.

    alignments.tsv has a line for each variant, and clusters.tsv a line for each row of the alignment. Raise
    `InputError` if a masked residue is not in the target, or if the rows of a complex are to be clustered.
    """
    expected = expected_variants(settings, job, None)
    for variant in expected.variants:
        column_mask(features, variant.columns)
    variants, record, clusters = list(expected.variants), None, None
    if settings.clusters is not None:
        clusters = cluster_alignment(single_chain(features).msa, settings.clusters)
        variants += cluster_variants(settings.clusters, clusters)
        record = ClusterRecord(settings=str(settings.clusters), count=clusters.count, eps=clusters.eps)
    if directory is not None and not settings.is_empty:
        write_file(VARIANTS_TABLE.path(directory), _variants_table(variants, features))
    if directory is not None and clusters is not None:
        write_file(CLUSTERS_TABLE.path(directory), _clusters_table(clusters, features))
    return TargetVariants(variants=variants, clusters=record)


def _variants_table(variants: Sequence[AlignmentVariant], features: TargetFeatures) -> str:
    """Return a table of the variants: number of rows, mean identity to the target, and masked columns."""
    msa = alignment_of(features).msa
    identity = (msa == msa[0]).mean(1)
    lines = []
    for variant in variants:
        rows = np.arange(len(msa)) if variant.rows is None else np.array(variant.rows)
        mean_identity = None if len(rows) == 1 else float(identity[rows[rows > 0]].mean())
        masked = int(column_mask(features, variant.columns).sum())
        limits = variant.max_msa_rows, variant.max_extra_rows
        count, mean = len(rows), rounded(mean_identity)
        lines.append([variant.name or "all", count, mean, masked, *limits, variant.description or "all"])
    names = ("alignment", "rows", "identity_to_target", "masked_columns", "max_msa_rows", "max_extra_rows", "made_by")
    return tab_separated(names, lines)


def _clusters_table(clusters: AlignmentClusters, features: TargetFeatures) -> str:
    """Return a table of the rows of the alignment (row 0 is the target): cluster, share of gaps, identity."""
    msa = alignment_of(features).msa
    gaps, identity = (msa == GAP).mean(1), (msa == msa[0]).mean(1)
    lines = (
        [
            row,
            "target" if row == 0 else _UNCLUSTERED_NAMES.get(label, label),
            rounded(float(share_of_gaps)),
            rounded(float(share_of_matches)),
        ]
        for row, (label, share_of_gaps, share_of_matches) in enumerate(
            zip(clusters.labels.tolist(), gaps, identity, strict=True)
        )
    )
    return tab_separated(("row", "cluster", "gaps", "identity_to_target"), lines)
