"""Read the sequences that `helixfold submit` sends, from FASTA files or from the command line."""

from collections.abc import Sequence
from pathlib import Path

from data_pipeline.features.complexes.sequence_files import read_fasta_targets
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.features.complexes.target_files import is_sequence, require_typed_length
from data_pipeline.io.errors import InputError


def read_records(inputs: Sequence[Path], *, has_files: bool) -> list[tuple[str, str]]:
    """Return the name and sequence of each record, with ':' between chains.

    `inputs` are FASTA files, or sequences as arguments, which are named "protein". With `has_files`, alignments or
    templates are submitted too, so there must be one record. Raise `InputError` for invalid files or no records.
    """
    records = []
    for path in inputs:
        if is_sequence(path):
            records.append(("protein", str(path)))
            continue
        require_typed_length(path)
        for record in read_fasta_targets(path):
            chains = record.sequences if isinstance(record, ComplexTarget) else (record.sequence,)
            records.append((record.name, ":".join(chains)))
    if not records:
        raise InputError("pass FASTA files or a sequence")
    if has_files and len(records) > 1:
        raise InputError(
            "--msa and --templates can only be used with a single sequence; submit each sequence separately"
        )
    return records
