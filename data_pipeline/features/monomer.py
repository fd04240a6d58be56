"""Combine the sequence, alignments and templates of a monomer into its features."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from data_pipeline.features.msa import msa_features, single_sequence
from data_pipeline.features.schema import Features
from data_pipeline.features.sequence import aatype_from_sequence
from data_pipeline.features.templates import TemplateFeatures, no_templates
from data_pipeline.parse.a3m import Alignment
from data_pipeline.residue_ranges import fragment_numbers


def monomer_features(
    name: str, sequence: str, alignments: Iterable[Alignment] = (), templates: TemplateFeatures | None = None
) -> Features:
    """Return the features of a monomer; without `templates`, the template features are empty.

    Row 0 of the MSA is the target itself; the rows of the alignments follow in order, without duplicates.
    """
    msa, deletion_matrix = msa_features([single_sequence(sequence), *alignments])
    return Features(
        domain_name=name,
        sequence=sequence,
        aatype=aatype_from_sequence(sequence),
        residue_index=np.arange(len(sequence), dtype=np.int32),
        msa=msa,
        deletion_matrix=deletion_matrix,
        **(no_templates(len(sequence)) if templates is None else templates),
    )


def numbered(features: Features, fragment: str) -> Features:
    """Return features whose residue index has the numbers of a fragment such as 1-100,150-200, minus 1.

    The features only have the residues of the fragment; with "", they are returned unchanged.
    """
    if not fragment:
        return features
    return replace(features, residue_index=np.array(fragment_numbers(fragment), np.int32) - 1)
