"""Reading alignments in a3m: upper case and '-' are columns of the target, lower case is inserted between them."""

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike

import numpy as np
from jaxtyping import Int, UInt8

from data_pipeline.errors import InputError, printable
from data_pipeline.parse.text import read_text_bytes
from data_pipeline.residues import AMBIGUOUS_LETTERS, RESTYPES

MAX_A3M_BYTES = 2**30

_COLUMN_LETTERS = (RESTYPES + AMBIGUOUS_LETTERS + "-").encode()
_INSERT_LETTERS = (RESTYPES + AMBIGUOUS_LETTERS).lower().encode()
_PADDING = b"."  # fills other rows' insertions in some writers' files; means nothing
_COMMENTS = (b"#", b";")
_AMBIGUOUS_TO_X = bytes.maketrans(AMBIGUOUS_LETTERS.encode(), b"X" * len(AMBIGUOUS_LETTERS))


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Sequences aligned to the target, whose own row is the first."""

    names: tuple[str, ...]  # first words of the headers
    letters: UInt8[np.ndarray, "n r"]  # ASCII: residues in upper case or '-'
    deletion_matrix: Int[np.ndarray, "n r"]  # residues a row has just before each column that the target lacks

    @property
    def query(self) -> str:
        return str(self.letters[0].tobytes(), "ascii")


def read_a3m(path: str | PathLike[str], query: str | None = None) -> Alignment:
    """The alignment in a plain or gzip a3m file of at most `MAX_A3M_BYTES` (unpacked); see `parse_a3m`."""
    return parse_a3m(read_text_bytes(path, MAX_A3M_BYTES), query, path=path)


def parse_a3m(content: bytes, query: str | None = None, *, path: str | PathLike[str] = "a3m") -> Alignment:
    """The alignment in the text of an a3m file with `\\n` line ends.

    The first row must be the target: `query` if given (letters for unknown residues match each other), else any row
    without gaps and insertions. Insertions count as deletions before the next column; those after the last column
    are dropped, as in AlphaFold. Lines that begin with '#' or ';' are comments. Errors are `InputError`s that name
    `path`, line and record.
    """
    names: list[str] = []
    rows: list[bytes] = []
    insertions: dict[int, np.ndarray] = {}
    for line, header, body in _records(path, content):
        name = _name(header)
        text = b"".join(body).translate(None, _PADDING)
        row = text.translate(None, _INSERT_LETTERS)
        if row.translate(None, _COLUMN_LETTERS):
            raise _illegal_letter(path, line, name, content)
        if not rows:
            problem = _query_problem(row, query, inserted=len(text) != len(row))
            if problem is not None:
                raise InputError.at(path, f"the first row {problem}", line=line, record=name)
            row = row if query is None else query.encode()  # the target's own letters for unknown residues
        elif len(row) != len(rows[0]):
            problem = f"the row has {len(row)} columns (upper case and '-'), the first row {len(rows[0])}"
            raise InputError.at(path, f"{problem}; was the file cut or edited?", line=line, record=name)
        if len(text) != len(row):
            columns = np.flatnonzero(np.frombuffer(text, np.uint8) < ord("a"))
            insertions[len(rows)] = np.diff(columns, prepend=-1) - 1
        names.append(name)
        rows.append(row)
    if not rows:
        raise InputError.at(path, "there is no alignment row; an a3m begins with '>name' and the target's sequence")
    deletion_matrix = np.zeros((len(rows), len(rows[0])), np.int32)
    for index, counts in insertions.items():
        deletion_matrix[index] = counts
    letters = np.frombuffer(b"".join(rows), np.uint8).reshape(deletion_matrix.shape)
    return Alignment(names=tuple(names), letters=letters, deletion_matrix=deletion_matrix)


def _records(path: str | PathLike[str], content: bytes) -> Iterator[tuple[int, bytes, list[bytes]]]:
    """Header line number, header and sequence lines of each record."""
    header: tuple[int, bytes] | None = None
    body: list[bytes] = []
    for number, line in _lines(content):
        if line.startswith(b">"):
            if header is not None:
                yield *header, body
            header, body = (number, line[1:]), []
        elif header is not None:
            body.append(line)
        else:
            raise InputError.at(path, "text before the first '>name' line; is this an a3m file?", line=number)
    if header is not None:
        yield *header, body


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Lines that count, numbered from 1, one at a time so that a large file is not held twice."""
    start, number = 0, 1
    while start < len(content):
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        # MMseqs2 servers separate the results of several databases by NUL bytes.
        line = content[start:end].strip(b" \t\0")
        if line and not line.startswith(_COMMENTS):
            yield number, line
        start, number = end + 1, number + 1


def _name(header: bytes) -> str:
    words = header.split(maxsplit=1)
    return words[0].decode("utf-8", "replace") if words else ""


def _illegal_letter(path: str | PathLike[str], header_line: int, name: str, content: bytes) -> InputError:
    for number, line in _lines(content):
        if number <= header_line:
            continue
        wrong = line.translate(None, _COLUMN_LETTERS + _INSERT_LETTERS + _PADDING)
        if wrong:
            column = content.split(b"\n")[number - 1].index(wrong[:1]) + 1
            letter = printable(wrong[:1].decode("latin-1"))
            problem = f"'{letter}' is no residue letter, gap ('-') or insertion (lower case)"
            return InputError.at(path, problem, line=number, column=column, record=name)
    raise AssertionError(f"no illegal letter after line {header_line}")


def _query_problem(row: bytes, query: str | None, *, inserted: bool) -> str | None:
    """Why the first row cannot stand for the target, or None if it can."""
    if not row:
        return "has no residues; it must be the target"
    if query is None:
        if inserted:
            return "has lower-case letters; it must be the target, in upper case"
        gap = row.find(b"-")
        return None if gap < 0 else f"has a gap at column {gap + 1}; it must be the target, without gaps"
    given, wanted = row.translate(_AMBIGUOUS_TO_X), query.encode().translate(_AMBIGUOUS_TO_X)
    if given == wanted:
        return None
    differences = (index for index, pair in enumerate(zip(given, wanted, strict=False)) if pair[0] != pair[1])
    index = next(differences, None)
    found = [] if index is None else [f"at residue {index + 1} it has '{chr(row[index])}', the target '{query[index]}'"]
    if len(row) != len(query):
        found.append(f"it has {len(row)} columns, the target {len(query)} residues")
    if inserted:
        found.append("its lower-case letters are insertions, no columns")
    return f"is not the target: {'; '.join(found)}; use the alignment that was made for this sequence"
