"""Read files that tests hold in memory."""

from unittest.mock import patch

from data_pipeline.features.complexes.sequence_files import read_table_targets
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.parse import alignment, csv_table, fasta
from data_pipeline.parse.a3m import Alignment
from data_pipeline.parse.fasta import FastaRecord
from data_pipeline.parse.text_files import content_lines


def parse_fasta(content: bytes, *, path: str = "FASTA") -> list[FastaRecord]:
    with patch.object(fasta, "read_lines", lambda path, _: content_lines(content, path)):
        return fasta.read_fasta(path)


def parse_csv(content: bytes, *, path: str = "CSV", delimiter: str = ",") -> list[FastaRecord | ComplexTarget]:
    with patch.object(csv_table, "read_lines", lambda path, _: content_lines(content, path)):
        return read_table_targets(path, delimiter)


def parse_alignment(
    content: bytes, query: str | None = None, *, path: str = "alignment", max_rows: int | None = None
) -> Alignment:
    with patch.object(alignment, "read_lines", lambda path, _: content_lines(content, path)):
        return alignment.read_alignment(path, query, max_rows=max_rows)
