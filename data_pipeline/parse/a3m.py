"""Read a3m alignments: upper case and '-' are columns of the target, lower case are insertions between them.

`INSERT_LETTERS` are the letters of insertions, and `PADDING` is the '.' that some files have at insertions of other
rows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike

import numpy as np
from jaxtyping import Int, UInt8

from data_pipeline.io.errors import InputError
from data_pipeline.parse.alignment_rows import (
    COLUMN_LETTERS,
    AlignmentBuilder,
    first_row_problem,
    first_word,
    row_limit,
    wrong_letter_error,
)
from data_pipeline.parse.text_files import MAX_LINE_BYTES, content_lines
from data_pipeline.residues import AMBIGUOUS_LETTERS, RESTYPES

INSERT_LETTERS = (RESTYPES + AMBIGUOUS_LETTERS).lower().encode()
PADDING = b"."  # in some files, at insertions of other rows
_COMMENTS = (b"#", b";")
_LINE_OVERHEAD_BYTES = 100  # bytes that Python takes to hold a line, besides its text


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Alignment of n sequences to the r residues of the target, which is the first row.

    `names` are the first words of the headers, and `letters` ASCII codes of residues in upper case or '-'.
    `deletion_matrix` has the number of residues of a row before each column that the target lacks.
    """

    names: tuple[str, ...]  # first words of the headers
    letters: UInt8[np.ndarray, "n r"]  # ASCII: residues in upper case or '-'
    # Number of residues that a row has before each column and that the target lacks; int8 if no count is above 127.
    deletion_matrix: Int[np.ndarray, "n r"]

    @property
    def query(self) -> str:
        """The target's sequence, as in the first row."""
        return str(self.letters[0].tobytes(), "ascii")


@dataclass(frozen=True, kw_only=True)
class AlignmentRecord:
    """One record of an a3m or aligned FASTA file.

    `line` is the line number of the header, from 1, `header` its text without '>', and `body` the numbered lines below.
    """

    line: int  # line number of the header, from 1
    header: bytes  # without '>'
    body: list[tuple[int, bytes]]  # line numbers and unchanged lines

    @property
    def name(self) -> str:
        """First word of the header, or ""."""
        return first_word(self.header)

    @property
    def text(self) -> bytes:
        """The aligned sequence: its lines joined, without blanks around them."""
        return b"".join([line.strip(b" \t\0") for _, line in self.body])


def parse_a3m(
    content: bytes, query: str | None = None, *, path: str | PathLike[str] = "a3m", max_rows: int | None = None
) -> Alignment:
    """Return the alignment in the content of an a3m file, or its first `max_rows` rows including the target.

    The first row must be the target: `query` if it is passed (letters for unknown residues match each other), else any
    row without gaps and insertions. Insertions count as deletions before the next column; insertions after the last
    column are dropped, as in AlphaFold. Lines that begin with '#' or ';' are comments. Raise `InputError` with `path`,
    line and record for any other content.
    """
    return a3m_from_lines(content_lines(content, path), query, path=path, max_rows=max_rows)


def a3m_from_lines(
    lines: Iterable[bytes], query: str | None, *, path: str | PathLike[str], max_rows: int | None
) -> Alignment:
    """Return the alignment in the lines of an a3m file; see `parse_a3m`."""
    limit = row_limit(max_rows)
    builder: AlignmentBuilder | None = None
    for record, text, row in checked_rows(lines, query, path):
        builder = builder or AlignmentBuilder(path, len(row))
        insertions = None
        if len(text) != len(row):
            columns = np.flatnonzero(np.frombuffer(text, np.uint8) < ord("a"))
            insertions = np.diff(columns, prepend=-1) - 1
        builder.append(record.name, row, insertions)
        if len(builder) == limit:
            break
    assert builder is not None
    return Alignment(names=tuple(builder.names), letters=builder.letters, deletion_matrix=builder.deletion_matrix)


def checked_rows(
    lines: Iterable[bytes], query: str | None, path: str | PathLike[str]
) -> Iterator[tuple[AlignmentRecord, bytes, bytes]]:
    """Yield each record with its aligned sequence, and with the sequence without insertions, the target first.

    Both are without padding; the second has `query` as its first row, if it is passed. Raise `InputError` if a record
    is invalid, if the first is not the target, or if none exists.
    """
    length = 0
    for record in read_records(lines, path):
        text = record.text.translate(None, PADDING)
        row = text.translate(None, INSERT_LETTERS)
        if row.translate(None, COLUMN_LETTERS):
            allowed = COLUMN_LETTERS + INSERT_LETTERS + PADDING
            raise wrong_letter_error(
                path, record.body, allowed, record.name, "residue letter, gap ('-') or insertion (lower case)"
            )
        if not length:
            problem = first_row_problem(row, query, inserted=len(text) != len(row))
            if problem is not None:
                raise InputError.at(path, f"the first row {problem}", line=record.line, record=record.name)
            row = row if query is None else query.encode()  # the target may have other letters for unknown residues
            length = len(row)
        elif len(row) != length:
            problem = f"the row has {len(row)} columns (upper case and '-'), the first row {length}"
            problem += "; was the file cut or edited?"
            raise InputError.at(path, problem, line=record.line, record=record.name)
        yield record, text, row
    if not length:
        raise InputError.at(path, "there is no alignment row; an a3m begins with '>name' and the target's sequence")


def read_records(lines: Iterable[bytes], path: str | PathLike[str]) -> Iterator[AlignmentRecord]:
    """Yield the records of an a3m or aligned FASTA file, without comments and empty lines.

    Raise `InputError` for text before the first header, and for a record of more than `MAX_LINE_BYTES`.
    """
    header: tuple[int, bytes] | None = None
    body: list[tuple[int, bytes]] = []
    size = 0
    for line_number, line in enumerate(lines, start=1):
        # MMseqs2 servers separate the results of several databases by NUL bytes.
        text = line.strip(b" \t\0")
        if not text or text.startswith(_COMMENTS):
            continue
        if text.startswith(b">"):
            if header is not None:
                yield AlignmentRecord(line=header[0], header=header[1], body=body)
            header, body, size = (line_number, text[1:]), [], 0
            continue
        if header is None:
            raise InputError.at(path, "text before the first '>name' line; is this an a3m file?", line=line_number)
        body.append((line_number, line))
        size += len(line) + _LINE_OVERHEAD_BYTES
        if size > MAX_LINE_BYTES:
            problem = f"the record takes more than {MAX_LINE_BYTES:,} bytes; is this an alignment of proteins?"
            raise InputError.at(path, problem, line=header[0], record=first_word(header[1]))
    if header is not None:
        yield AlignmentRecord(line=header[0], header=header[1], body=body)
