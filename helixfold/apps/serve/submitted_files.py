"""Read the sequences that `helixfold submit` sends: records of FASTA files, or sequences in the command line."""

from collections.abc import Sequence
from pathlib import Path

from data_pipeline.features.complexes.sequence_files import read_fasta_targets
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.features.complexes.target_files import is_sequence
from data_pipeline.io.errors import InputError


def records_of(inputs: Sequence[Path], *, has_files: bool) -> list[tuple[str, str]]:
    """Return name and sequence of each record, with ':' between chains. Raise `InputError` for wrong files."""
    found = []
    for path in inputs:
        if is_sequence(path):
            found.append(("protein", str(path)))
            continue
        for record in read_fasta_targets(path):
            chains = record.sequences if isinstance(record, ComplexTarget) else (record.sequence,)
            found.append((record.name, ":".join(chains)))
    if not found:
        raise InputError("pass FASTA files or a sequence")
    if has_files and len(found) > 1:
        raise InputError(
            "--msa and --templates can only be used with a single sequence; submit each sequence separately"
        )
    return found
