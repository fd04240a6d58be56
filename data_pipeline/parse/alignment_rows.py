"""Shared by the readers of all alignment formats: collect rows in bounded memory, and check them.

`MAX_ALIGNMENT_BYTES` limits the unpacked text of a file, and `MAX_MEMORY_BYTES` the memory of one alignment. `GAP` is
the ASCII code of '-', and `COLUMN_LETTERS` are the residues in upper case and '-'. `ALIGNED_TO_COLUMNS` is a
translation of bytes that turns lower case into upper case and other gap letters into '-'.
"""

import sys
from collections.abc import Iterable
from os import PathLike

import numpy as np
from jaxtyping import Integer, UInt8

from data_pipeline.io.errors import InputError, TooLargeError, printable
from data_pipeline.residues import AMBIGUOUS_LETTERS, RESTYPES

# Only stops gzip bombs: text is read line by line, and MAX_MEMORY_BYTES limits the memory.
MAX_ALIGNMENT_BYTES = 2**34
# Memory of one alignment; a million rows of a hundred columns need a third of it.
MAX_MEMORY_BYTES = 768 * 2**20

_NAME_OVERHEAD_BYTES = 24  # bytes per name in a long list, in addition to the string

GAP = ord("-")
COLUMN_LETTERS = (RESTYPES + AMBIGUOUS_LETTERS + "-").encode()

_AMBIGUOUS_TO_X = bytes.maketrans(AMBIGUOUS_LETTERS.encode(), b"X" * len(AMBIGUOUS_LETTERS))
_LOWER_CASE_LETTERS = (RESTYPES + AMBIGUOUS_LETTERS).lower().encode()
# HMMER and UCSC's a2m have lower case and '.' in insertion columns; '~' and '_' are gaps at the ends of a row.
ALIGNED_TO_COLUMNS = bytes.maketrans(_LOWER_CASE_LETTERS + b".~_", _LOWER_CASE_LETTERS.upper() + b"---")


class AlignmentBuilder:
    """Builds an alignment of `columns` columns row by row; raises `TooLargeError` above `MAX_MEMORY_BYTES`.

    `path` is for messages. Deletion counts take one byte each until one of them needs two or four. Most alignments have
    no count above 127, and at four bytes each the counts would be the largest part of a deep alignment.
    """

    def __init__(self, path: str | PathLike[str], columns: int) -> None:
        self.names: list[str] = []
        self._path = path
        self._columns = columns
        self._letters = bytearray()
        self._deletions = bytearray()
        self._dtype = np.dtype(np.int8)
        self._none = bytes(columns)
        self._name_bytes = 0

    def append(self, name: str, letters: bytes, deletions: np.ndarray | None) -> None:
        """Add one row: its letters, and the number of insertions before each column, or None if it has none."""
        if deletions is None:  # most rows
            self._deletions += self._none
        else:
            self._widen(deletions)
            self._deletions += deletions.astype(self._dtype).tobytes()
        self._letters += letters
        self._add_names([name])

    def extend(self, names: list[str], letters: UInt8[np.ndarray, "m r"], deletions: np.ndarray) -> None:
        """Add several rows: their letters in ASCII, and the number of insertions before each column."""
        self._widen(deletions)
        self._deletions += deletions.astype(self._dtype).tobytes()
        self._letters += letters.tobytes()
        self._add_names(names)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def letters(self) -> UInt8[np.ndarray, "n r"]:
        """The letters of all rows, in ASCII."""
        return np.frombuffer(self._letters, np.uint8).reshape(len(self), self._columns)

    @property
    def deletion_matrix(self) -> Integer[np.ndarray, "n r"]:
        """The number of insertions before each column of all rows."""
        return np.frombuffer(self._deletions, self._dtype).reshape(len(self), self._columns)

    def _add_names(self, names: list[str]) -> None:
        """Add row names and check the memory of all rows so far."""
        self.names += names
        self._name_bytes += sum(map(sys.getsizeof, names)) + _NAME_OVERHEAD_BYTES * len(names)
        check_memory(self._path, len(self._letters) + len(self._deletions) + self._name_bytes, len(self))

    def _widen(self, deletions: np.ndarray) -> None:
        """Store deletion counts as a larger integer type if the largest of `deletions` needs it."""
        needed = smallest_count_type(int(deletions.max(initial=0)))
        if needed.itemsize <= self._dtype.itemsize:
            return
        size = len(self._letters) * needed.itemsize
        check_memory(self._path, size + len(self._letters) + len(self._deletions) + self._name_bytes, len(self))
        wide = bytearray(size)
        np.frombuffer(wide, needed)[:] = np.frombuffer(self._deletions, self._dtype)
        self._deletions, self._dtype, self._none = wide, needed, bytes(self._columns * needed.itemsize)


class TargetColumns:
    """Divides the columns of an alignment (or of one block) into target residues and the insertions between them.

    `indices` are the columns in which the target has a residue.
    """

    def __init__(self, target_row: UInt8[np.ndarray, "w"]) -> None:
        has_residue = target_row != GAP
        self.indices = np.flatnonzero(has_residue)
        self._inserted = np.flatnonzero(~has_residue)
        next_column = np.searchsorted(self.indices, self._inserted)  # the target's column after each inserted one
        self._runs = np.flatnonzero(np.diff(next_column, prepend=-1))
        self._next_column = next_column[self._runs]

    def split(
        self, rows: UInt8[np.ndarray, "m w"]
    ) -> tuple[UInt8[np.ndarray, "m r"], Integer[np.ndarray, "m r_and_end"]]:
        """Return the letters in the target's columns, and the numbers of insertions before each and after the last."""
        inserted = np.zeros((len(rows), len(self.indices) + 1), np.int32)
        if self._inserted.size:
            residues = rows[:, self._inserted] != GAP
            inserted[:, self._next_column] = np.add.reduceat(residues, self._runs, axis=1, dtype=np.int32)
        return rows[:, self.indices], inserted


def smallest_count_type(highest: int) -> np.dtype[np.signedinteger]:
    """Return the smallest signed integer type, from int8, that holds counts up to `highest`."""
    return next(np.dtype(kind) for kind in (np.int8, np.int16, np.int32, np.int64) if highest <= np.iinfo(kind).max)


def check_memory(path: str | PathLike[str], needed: int, rows: int) -> None:
    """Raise `TooLargeError` if `needed` bytes, for the first `rows` rows, are more than `MAX_MEMORY_BYTES`."""
    if needed > MAX_MEMORY_BYTES:
        problem = f"its first {rows:,} rows take more than the maximum of {MAX_MEMORY_BYTES >> 20} MiB"
        raise TooLargeError.at(path, f"{problem}; filter the alignment or read fewer rows")


def row_limit(max_rows: int | None) -> int:
    """Return `max_rows`, or the largest integer if it is None; raise `ValueError` if it is less than 1."""
    if max_rows is None:
        return sys.maxsize
    if max_rows < 1:
        raise ValueError(f"max_rows must be at least 1, because the target is a row: got {max_rows}")
    return max_rows


def first_row_problem(row: bytes, query: str | None, *, inserted: bool = False) -> str | None:
    """Return the reason why the first row is not the target, or None if it is.

    `row` has its insertions removed; `inserted` is true if it had any. Without `query`, any row without gaps and
    insertions is a target. Otherwise, letters for unknown residues match each other. The reason continues a sentence.
    """
    if not row:
        return "has no residues; it must be the target"
    if query is None:
        if inserted:
            return "has lower-case letters; it must be the target, in upper case"
        gap = row.find(b"-")
        return None if gap < 0 else f"has a gap at column {gap + 1}; it must be the target, without gaps"
    row_as_x, query_as_x = row.translate(_AMBIGUOUS_TO_X), query.encode().translate(_AMBIGUOUS_TO_X)
    if row_as_x == query_as_x:
        return None
    index = next((index for index, (a, b) in enumerate(zip(row_as_x, query_as_x, strict=False)) if a != b), None)
    reasons = (
        [] if index is None else [f"at residue {index + 1} it has '{chr(row[index])}', the target '{query[index]}'"]
    )
    if len(row) != len(query):
        reasons.append(f"it has {len(row)} columns, the target {len(query)} residues")
    if inserted:
        reasons.append("its lower-case letters are insertions, not columns")
    return f"is not the target: {'; '.join(reasons)}; pass the alignment of this sequence"


def first_word(header: bytes) -> str:
    """Return the first word of a header, or an empty string."""
    words = header.split(maxsplit=1)
    return words[0].decode("utf-8", "replace") if words else ""


def wrong_letter_error(
    path: str | PathLike[str], lines: Iterable[tuple[int, bytes]], allowed: bytes, name: str, meaning: str
) -> InputError:
    """Return the error for the first letter of a row that is not in `allowed`; at least one must be invalid.

    `lines` are its numbered lines, `name` is the row's, and `meaning` describes the allowed letters.
    """
    line_number, line = next(each for each in lines if each[1].strip(b" \t\0").translate(None, allowed))
    wrong = line.strip(b" \t\0").translate(None, allowed)[:1]
    problem = f"'{printable(wrong.decode('latin-1'))}' is not a {meaning}"
    return InputError.at(path, problem, line=line_number, column=line.index(wrong) + 1, record=name)
