"""Read files that tests hold in memory."""

from data_pipeline.parse.a3m import Alignment
from data_pipeline.parse.alignment import alignment_from_lines
from data_pipeline.parse.csv_table import csv_from_lines
from data_pipeline.parse.fasta import FastaRecord, fasta_from_lines
from data_pipeline.parse.text_files import content_lines


def parse_fasta(content: bytes, *, path: str = "FASTA") -> list[FastaRecord]:
    return fasta_from_lines(content_lines(content, path), path)


def parse_csv(content: bytes, *, path: str = "CSV", delimiter: str = ",") -> list[FastaRecord]:
    return csv_from_lines(content_lines(content, path), path, delimiter)


def parse_alignment(
    content: bytes, query: str | None = None, *, path: str = "alignment", max_rows: int | None = None
) -> Alignment:
    return alignment_from_lines(content_lines(content, path), query, path=path, max_rows=max_rows)
