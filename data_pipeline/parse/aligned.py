"""Reading alignments whose rows all have every column: aligned FASTA (also padded a2m) and PSICOV's .aln."""

from collections.abc import Iterable
from os import PathLike

import numpy as np

from data_pipeline.errors import InputError, printable
from data_pipeline.parse.a3m import Alignment, Record, records
from data_pipeline.parse.rows import (
    ALIGNED_TO_COLUMNS,
    COLUMN_LETTERS,
    Rows,
    TargetColumns,
    first_wrong_letter,
    row_limit,
    target_problem,
)

_BATCH_BYTES = 2**22
_LETTERS = COLUMN_LETTERS + COLUMN_LETTERS.lower() + b".~_"


def aligned_fasta_from_lines(
    lines: Iterable[bytes], query: str | None, *, path: str | PathLike[str], max_rows: int | None
) -> Alignment:
    """The alignment in the lines of an aligned FASTA file; case does not matter, and '.' is a gap as '-' is.

    The first row is the target (`query` if given); where it has a gap, other rows' residues are deletions, as in
    Stockholm.
    """
    return _alignment(records(lines, path), query, path, max_rows)


def aln_from_lines(
    lines: Iterable[bytes], query: str | None, *, path: str | PathLike[str], max_rows: int | None
) -> Alignment:
    """The alignment in the lines of PSICOV's format: one sequence in each, the target first and without gaps."""
    rows = (
        Record(line=number, header=b"%d" % number, body=[(number, line)])
        for number, line in enumerate(lines, start=1)
        if line.strip(b" \t\0")
    )
    return _alignment(rows, query, path, max_rows, gaps_in_target=False)


def _alignment(
    rows: Iterable[Record],
    query: str | None,
    path: str | PathLike[str],
    max_rows: int | None,
    *,
    gaps_in_target: bool = True,
) -> Alignment:
    limit = row_limit(max_rows)
    batches: _Batches | None = None
    for row in rows:
        text = _text(path, row)
        if batches is None:
            # An .aln whose first row has gaps was written without its target; any target read off it is a guess.
            target = text.translate(None, b"-") if gaps_in_target else text
            problem = target_problem(target, query)
            if problem is not None:
                raise InputError.at(path, f"the first row {problem}", line=row.line, record=row.name)
            batches = _Batches(path, text, len(target))
        elif len(text) != batches.width:
            problem = f"the row has {len(text)} letters and gaps, the first row {batches.width}"
            raise InputError.at(path, f"{problem}; was the file cut or edited?", line=row.line, record=row.name)
        batches.add(row.name, text)
        if batches.count == limit:
            break
    if batches is None:
        raise InputError.at(path, "there is no alignment row; the first must be the target")
    found = batches.finish()
    letters = found.letters
    if query is not None:
        letters[0] = np.frombuffer(query.encode(), np.uint8)  # the target's own letters for unknown residues
    return Alignment(names=tuple(found.names), letters=letters, deletion_matrix=found.deletion_matrix)


class _Batches:
    """Rows on their way into `Rows`, many at a time because NumPy is slow for few."""

    def __init__(self, path: str | PathLike[str], target_row: bytes, length: int) -> None:
        self.width = len(target_row)
        self.count = 0
        self._columns = TargetColumns(np.frombuffer(target_row, np.uint8))
        self._rows = Rows(path, length)
        self._names: list[str] = []
        self._text = bytearray()

    def add(self, name: str, text: bytes) -> None:
        self._names.append(name)
        self._text += text
        self.count += 1
        if len(self._text) > _BATCH_BYTES:
            self._flush()

    def finish(self) -> Rows:
        if self._names:
            self._flush()
        return self._rows

    def _flush(self) -> None:
        letters, inserted = self._columns.split(np.frombuffer(self._text, np.uint8).reshape(-1, self.width))
        self._rows.extend(self._names, letters, inserted[:, :-1])
        self._names, self._text = [], bytearray()


def _text(path: str | PathLike[str], row: Record) -> bytes:
    """The row in upper case, with '-' for every kind of gap."""
    text = row.text.translate(ALIGNED_TO_COLUMNS)
    if text.translate(None, COLUMN_LETTERS):
        found = first_wrong_letter(row.body, _LETTERS)
        assert found is not None
        line, column, letter = found
        problem = f"'{printable(letter)}' is no residue letter or gap"
        raise InputError.at(path, problem, line=line, column=column, record=row.name)
    return text
