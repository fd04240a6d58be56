"""Read an alignment in any supported format, which is recognised by content because file names are unreliable."""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from os import PathLike

from data_pipeline.errors import InputError
from data_pipeline.parse.a3m import Alignment, a3m_from_lines, read_records
from data_pipeline.parse.aligned_fasta import aligned_fasta_from_lines, aln_from_lines
from data_pipeline.parse.alignment_rows import MAX_ALIGNMENT_BYTES
from data_pipeline.parse.stockholm import stockholm_from_lines
from data_pipeline.parse.text_files import read_lines

_PEEKED_BYTES = 2**18
_COMMENTS = (b"#", b";")
# First line of ColabFold's alignments: lengths of the different chains, and the number of copies of each.
_COLABFOLD = re.compile(rb"#(\d+(?:,\d+)*)\t(\d+(?:,\d+)*)")
_UNSUPPORTED = (
    (b"CLUSTAL", "this is CLUSTAL format, which is not read; write it as aligned FASTA"),
    (b"Query  ", "this is a list of template hits (.hhr), no alignment"),
    (b"data_", "this is a structure (mmCIF), no alignment"),
)


def read_alignment(path: str | PathLike[str], query: str | None = None, *, max_rows: int | None = None) -> Alignment:
    """Return the alignment in a plain or gzip a3m, Stockholm, aligned FASTA (or padded a2m) or PSICOV file.

    The first row must be the target, which is `query` if given. At most `max_rows` rows are read, including the target.
    Raise `InputError` with `path`, line and record for any other content.
    """
    lines = read_lines(path, MAX_ALIGNMENT_BYTES)
    begin, is_whole = _beginning(lines)
    whole = chain(begin, lines)
    texts = [text for text in (line.strip(b" \t\0") for line in begin) if text]
    first = texts[0] if texts else b""
    for start, problem in _UNSUPPORTED:
        if first.startswith(start):
            raise InputError.at(path, problem, line=1)
    if (found := _COLABFOLD.fullmatch(first)) is not None:
        lengths, copies = (group.split(b",") for group in found.groups())
        chains = sum(int(count[:9]) for count in copies)
        if len(lengths) > 1 or chains != 1:
            raise InputError.at(
                path,
                f"this is ColabFold's alignment of a complex ({chains} chains), and a single chain's is needed here; "
                "it can be an input itself, or the alignment of that complex",
                line=1,
            )
    if first.startswith((b"# STOCKHOLM", b"#=G")):
        return stockholm_from_lines(whole, query, path=path, max_rows=max_rows)
    row = next((text for text in texts if not text.startswith(_COMMENTS)), b"")
    if not row:
        raise InputError.at(path, "there is no alignment in it; the first row must be the target")
    if row.startswith(b">"):
        read = aligned_fasta_from_lines if _has_equal_rows(begin, path, whole=is_whole) else a3m_from_lines
        return read(whole, query, path=path, max_rows=max_rows)
    if len(row.split()) == 1:
        return aln_from_lines(whole, query, path=path, max_rows=max_rows)
    return stockholm_from_lines(whole, query, path=path, max_rows=max_rows)


def _beginning(lines: Iterator[bytes]) -> tuple[list[bytes], bool]:
    """Return the first lines, enough to recognise the format, and whether the file ends there."""
    begin: list[bytes] = []
    size = 0
    for line in lines:
        begin.append(line)
        size += len(line) + 1
        if size > _PEEKED_BYTES:
            return begin, False
    return begin, True


def _has_equal_rows(begin: Iterable[bytes], path: str | PathLike[str], *, whole: bool) -> bool:
    """Return whether these records are aligned FASTA rather than a3m.

    In both formats, rows without insertions have equal length; then a3m is assumed, as insertions may follow further
    down. A file of equal rows is aligned FASTA if its target has gaps or any row has lower case.
    """
    texts = [record.text for record in read_records(begin, path)]
    if len(texts) > 1 and not whole:
        texts.pop()  # it may be incomplete
    if len({len(text) for text in texts}) != 1:
        return False
    return any(gap in texts[0] for gap in (b"-", b".", b"~", b"_")) or any(text != text.upper() for text in texts)
