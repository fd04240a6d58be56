"""Read alignments whose rows all have equal length: aligned FASTA (also padded a2m) and PSICOV's .aln."""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from os import PathLike

import numpy as np

from data_pipeline.errors import InputError
from data_pipeline.parse.a3m import Alignment, AlignmentRecord, read_records
from data_pipeline.parse.alignment_rows import (
    ALIGNED_TO_COLUMNS,
    COLUMN_LETTERS,
    AlignmentBuilder,
    TargetColumns,
    first_row_problem,
    row_limit,
    wrong_letter_error,
)

_BATCH_BYTES = 2**22
_ROW_COST = 200  # bytes that Python takes to hold a row and its name, besides their text
_LETTERS = COLUMN_LETTERS + COLUMN_LETTERS.lower() + b".~_"


def aligned_fasta_from_lines(
    lines: Iterable[bytes], query: str | None, *, path: str | PathLike[str], max_rows: int | None
) -> Alignment:
    """Return the alignment in the lines of an aligned FASTA file; case does not matter, and '.' is a gap as '-' is.

    The first row is the target (`query` if given); where it has a gap, other rows' residues count as deletions, as in
    Stockholm.
    """
    return _alignment(read_records(lines, path), query, path, max_rows)


def aln_from_lines(
    lines: Iterable[bytes], query: str | None, *, path: str | PathLike[str], max_rows: int | None
) -> Alignment:
    """Return the alignment in the lines of PSICOV's format: one sequence each, the target first and without gaps."""
    rows = (
        AlignmentRecord(line=number, header=b"%d" % number, body=[(number, line)])
        for number, line in enumerate(lines, start=1)
        if line.strip(b" \t\0")
    )
    return _alignment(rows, query, path, max_rows, gaps_in_target=False)


def _alignment(
    rows: Iterable[AlignmentRecord],
    query: str | None,
    path: str | PathLike[str],
    max_rows: int | None,
    *,
    gaps_in_target: bool = True,
) -> Alignment:
    """Return the alignment of these rows, which are split in large batches, because NumPy is slow for few rows."""
    checked: Iterator[tuple[str, bytes]] = islice(
        _checked(rows, query, path, gaps_in_target=gaps_in_target), row_limit(max_rows)
    )
    target = next(checked, None)
    if target is None:
        raise InputError.at(path, "there is no alignment row; the first must be the target")
    width = len(target[1])
    columns = TargetColumns(np.frombuffer(target[1], np.uint8))
    builder = AlignmentBuilder(path, len(columns.indices))
    checked = chain([target], checked)
    while batch := list(islice(checked, 1 + _BATCH_BYTES // (width + _ROW_COST))):
        text = b"".join([row for _, row in batch])
        letters, inserted = columns.split(np.frombuffer(text, np.uint8).reshape(-1, width))
        builder.extend([name for name, _ in batch], letters, inserted[:, :-1])
    letters = builder.letters
    if query is not None:
        letters[0] = np.frombuffer(query.encode(), np.uint8)  # the target's own letters for unknown residues
    return Alignment(names=tuple(builder.names), letters=letters, deletion_matrix=builder.deletion_matrix)


def _checked(
    rows: Iterable[AlignmentRecord], query: str | None, path: str | PathLike[str], *, gaps_in_target: bool
) -> Iterator[tuple[str, bytes]]:
    """Yield each row's name, and its letters in upper case with '-' for every kind of gap, the target first."""
    width = 0
    for row in rows:
        text = row.text.translate(ALIGNED_TO_COLUMNS)
        if text.translate(None, COLUMN_LETTERS):
            raise wrong_letter_error(path, row.body, _LETTERS, row.name, "residue letter or gap")
        if not width:
            # An .aln whose first row has gaps was written without its target, which cannot be inferred.
            target = text.translate(None, b"-") if gaps_in_target else text
            problem = first_row_problem(target, query)
            if problem is not None:
                raise InputError.at(path, f"the first row {problem}", line=row.line, record=row.name)
            width = len(text)
        elif len(text) != width:
            problem = f"the row has {len(text)} letters and gaps, the first row {width}"
            raise InputError.at(path, f"{problem}; was the file cut or edited?", line=row.line, record=row.name)
        yield row.name, text
