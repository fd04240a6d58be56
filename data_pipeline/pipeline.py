"""From a target's sequence and its alignments to its features."""

from collections.abc import Iterable
from os import PathLike

from data_pipeline.errors import InputError
from data_pipeline.features.msa import msa_features, single_sequence
from data_pipeline.features.schema import Features
from data_pipeline.features.sequence import aatype_from_sequence, residue_index
from data_pipeline.features.templates import no_templates
from data_pipeline.parse.a3m import read_a3m
from data_pipeline.parse.fasta import check_letters


def features_from_sequence(name: str, sequence: str, a3m_paths: Iterable[str | PathLike[str]] = ()) -> Features:
    """Features of a monomer from its sequence and any number of a3m files, merged in the order given.

    The target itself is always row 0 of the MSA; without files it is the only row. Each file's first row must be the
    target. Wrong input raises `InputError`.
    """
    found = check_letters(sequence)
    if found is not None:
        raise InputError(f"sequence of '{name}', residue {found[0] + 1}: {found[1]}")
    if not sequence:
        raise InputError(f"sequence of '{name}' is empty; give at least one residue")
    alignments = [single_sequence(sequence), *(read_a3m(path, sequence) for path in a3m_paths)]
    msa, deletion_matrix = msa_features(alignments)
    return Features(
        domain_name=name,
        sequence=sequence,
        aatype=aatype_from_sequence(sequence),
        residue_index=residue_index(len(sequence)),
        msa=msa,
        deletion_matrix=deletion_matrix,
        **no_templates(len(sequence)),
    )
