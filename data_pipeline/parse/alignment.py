"""Read alignments in all supported formats, recognised by content because file names are unreliable."""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from os import PathLike

import numpy as np

from data_pipeline.io.errors import InputError
from data_pipeline.parse.a3m import Alignment, AlignmentRecord, a3m_from_lines, read_records
from data_pipeline.parse.alignment_rows import (
    ALIGNED_TO_COLUMNS,
    COLUMN_LETTERS,
    MAX_ALIGNMENT_BYTES,
    AlignmentBuilder,
    TargetColumns,
    first_row_problem,
    row_limit,
    wrong_letter_error,
)
from data_pipeline.parse.stockholm import stockholm_from_lines
from data_pipeline.parse.text_files import read_lines

_PEEKED_BYTES = 2**18
_COMMENTS = (b"#", b";")
# First line of ColabFold's alignments: the length of each distinct chain, and its number of copies.
_COLABFOLD = re.compile(rb"#(\d+(?:,\d+)*)\t(\d+(?:,\d+)*)")
_UNSUPPORTED = (
    (b"CLUSTAL", "CLUSTAL format is not supported; convert it to aligned FASTA"),
    (b"Query  ", "got a list of template hits (.hhr), expected an alignment"),
    (b"data_", "got a structure (mmCIF), expected an alignment"),
)


def read_alignment(path: str | PathLike[str], query: str | None = None, *, max_rows: int | None = None) -> Alignment:
    """Return the alignment in a plain or gzip file: a3m, Stockholm, aligned FASTA, padded a2m, or PSICOV.

    The first row must be the target (`query` if it is passed). `max_rows` limits the rows that are read, including the
    target. Raise `InputError` with `path`, line and record for any other content.
    """
    lines = read_lines(path, MAX_ALIGNMENT_BYTES)
    first_lines, is_whole = _beginning(lines)
    all_lines = chain(first_lines, lines)
    texts = [text for text in (line.strip(b" \t\0") for line in first_lines) if text]
    first = texts[0] if texts else b""
    for start, problem in _UNSUPPORTED:
        if first.startswith(start):
            raise InputError.at(path, problem, line=1)
    if (colabfold_header := _COLABFOLD.fullmatch(first)) is not None:
        lengths, copies = (group.split(b",") for group in colabfold_header.groups())
        chains = sum(int(count[:9]) for count in copies)
        if len(lengths) > 1 or chains != 1:
            raise InputError.at(
                path,
                f"got ColabFold's alignment of a complex ({chains} chains), expected the alignment of a single chain; "
                "pass it as an input, or as the alignment of the complex",
                line=1,
            )
    if first.startswith((b"# STOCKHOLM", b"#=G")):
        return stockholm_from_lines(all_lines, query, path=path, max_rows=max_rows)
    row = next((text for text in texts if not text.startswith(_COMMENTS)), b"")
    if not row:
        raise InputError.at(path, "the file has no alignment row; the first row must be the target")
    if row.startswith(b">"):
        parse = aligned_fasta_from_lines if _is_aligned_fasta(first_lines, path, is_whole=is_whole) else a3m_from_lines
        return parse(all_lines, query, path=path, max_rows=max_rows)
    if len(row.split()) == 1:
        return aln_from_lines(all_lines, query, path=path, max_rows=max_rows)
    return stockholm_from_lines(all_lines, query, path=path, max_rows=max_rows)


def chain_lengths(alignment: Alignment) -> tuple[int, ...]:
    """Return the lengths of the chains if an alignment looks like ColabFold's of a complex, else ().

    ColabFold's alignment ends with a block of rows for each chain: first the chain itself, then its hits. Their other
    columns are gaps.
    """
    query, ends = alignment.letters[0].tobytes(), [0]
    for letters in alignment.letters[1:]:
        row = letters.tobytes()
        start, stop = len(row) - len(row.lstrip(b"-")), len(row.rstrip(b"-"))
        if start >= stop or (len(ends) > 1 and ends[-2] <= start and stop <= ends[-1]):
            continue  # an empty row, or one of the current block
        is_part = stop - start < len(row) and row[start:stop] == query[start:stop]
        ends = [*(ends if start == ends[-1] else [0]), stop] if is_part and start in (0, ends[-1]) else [0]
    return tuple(stop - start for start, stop in pairwise(ends)) if ends[-1] == len(query) else ()


def _beginning(lines: Iterator[bytes]) -> tuple[list[bytes], bool]:
    """Return enough lines to recognise the format, and whether these are the whole file."""
    first_lines: list[bytes] = []
    size = 0
    for line in lines:
        first_lines.append(line)
        size += len(line) + 1
        if size > _PEEKED_BYTES:
            return first_lines, False
    return first_lines, True


def _is_aligned_fasta(first_lines: Iterable[bytes], path: str | PathLike[str], *, is_whole: bool) -> bool:
    """Return whether the records are aligned FASTA rather than a3m.

    Rows of aligned FASTA have equal length, but a3m rows without insertions have too. Rows of equal length are aligned
    FASTA only if the target has gaps or any row has lower case.
    """
    texts = [record.text for record in read_records(first_lines, path)]
    if len(texts) > 1 and not is_whole:
        texts.pop()  # the last record may be incomplete
    if len({len(text) for text in texts}) != 1:
        return False
    return any(gap in texts[0] for gap in (b"-", b".", b"~", b"_")) or any(text != text.upper() for text in texts)


_BATCH_BYTES = 2**22
_ROW_OVERHEAD_BYTES = 200  # bytes that Python takes to hold a row and its name, besides their text
_ALLOWED_LETTERS = COLUMN_LETTERS + COLUMN_LETTERS.lower() + b".~_"


def aligned_fasta_from_lines(
    lines: Iterable[bytes], query: str | None, *, path: str | PathLike[str], max_rows: int | None
) -> Alignment:
    """Return the alignment in the lines of an aligned FASTA file; case is ignored, and '.' is a gap like '-'.

    The first row must be the target (`query` if it is passed), which may have gaps. Residues of other rows at its gaps
    count as deletions, as in Stockholm. `max_rows` limits the rows that are read, including the target.
    """
    return _read_rows(read_records(lines, path), query, path, max_rows)


def aln_from_lines(
    lines: Iterable[bytes], query: str | None, *, path: str | PathLike[str], max_rows: int | None
) -> Alignment:
    """Return the alignment in the lines of a PSICOV file: one sequence per line, the target first and without gaps.

    Rows are named by their line numbers. See `read_alignment` for the arguments.
    """
    rows = (
        AlignmentRecord(line=line_number, header=b"%d" % line_number, body=[(line_number, line)])
        for line_number, line in enumerate(lines, start=1)
        if line.strip(b" \t\0")
    )
    return _read_rows(rows, query, path, max_rows, gaps_in_target=False)


def _read_rows(
    rows: Iterable[AlignmentRecord],
    query: str | None,
    path: str | PathLike[str],
    max_rows: int | None,
    *,
    gaps_in_target: bool = True,
) -> Alignment:
    """Return the alignment of `rows`, split into columns in large batches because NumPy is slow for few rows."""
    checked: Iterator[tuple[str, bytes]] = islice(
        _checked_rows(rows, query, path, gaps_in_target=gaps_in_target), row_limit(max_rows)
    )
    target = next(checked, None)
    if target is None:
        raise InputError.at(path, "the file has no alignment row; the first row must be the target")
    width = len(target[1])
    columns = TargetColumns(np.frombuffer(target[1], np.uint8))
    builder = AlignmentBuilder(path, len(columns.indices))
    checked = chain([target], checked)
    while batch := list(islice(checked, 1 + _BATCH_BYTES // (width + _ROW_OVERHEAD_BYTES))):
        text = b"".join([row for _, row in batch])
        letters, inserted = columns.split(np.frombuffer(text, np.uint8).reshape(-1, width))
        builder.extend([name for name, _ in batch], letters, inserted[:, :-1])
    letters = builder.letters
    if query is not None:
        letters[0] = np.frombuffer(query.encode(), np.uint8)  # the target's own letters for unknown residues
    return Alignment(names=tuple(builder.names), letters=letters, deletion_matrix=builder.deletion_matrix)


def _checked_rows(
    rows: Iterable[AlignmentRecord], query: str | None, path: str | PathLike[str], *, gaps_in_target: bool
) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each row and its letters, in upper case and with '-' for all gaps; the target first."""
    width = 0
    for row in rows:
        text = row.text.translate(ALIGNED_TO_COLUMNS)
        if text.translate(None, COLUMN_LETTERS):
            raise wrong_letter_error(path, row.body, _ALLOWED_LETTERS, row.name, "residue letter or gap")
        if not width:
            # An .aln file lacks its target if the first row has gaps, and the target cannot be inferred.
            target = text.translate(None, b"-") if gaps_in_target else text
            problem = first_row_problem(target, query)
            if problem is not None:
                raise InputError.at(path, f"the first row {problem}", line=row.line, record=row.name)
            width = len(text)
        elif len(text) != width:
            problem = f"the row has {len(text)} letters and gaps, the first row {width}"
            raise InputError.at(path, f"{problem}; was the file cut or edited?", line=row.line, record=row.name)
        yield row.name, text
