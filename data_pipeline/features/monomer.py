"""All features of a monomer from its sequence, its alignments and its templates."""

from collections.abc import Iterable

from data_pipeline.features.msa import msa_features, single_sequence
from data_pipeline.features.schema import Features
from data_pipeline.features.sequence import aatype_from_sequence, residue_index
from data_pipeline.features.templates import TemplateFeatures, no_templates
from data_pipeline.parse.a3m import Alignment


def monomer_features(
    name: str, sequence: str, alignments: Iterable[Alignment] = (), templates: TemplateFeatures | None = None
) -> Features:
    """The target alone as row 0 of the MSA, then each alignment's rows that are new, in the order given."""
    msa, deletion_matrix = msa_features([single_sequence(sequence), *alignments])
    return Features(
        domain_name=name,
        sequence=sequence,
        aatype=aatype_from_sequence(sequence),
        residue_index=residue_index(len(sequence)),
        msa=msa,
        deletion_matrix=deletion_matrix,
        **(no_templates(len(sequence)) if templates is None else templates),
    )
