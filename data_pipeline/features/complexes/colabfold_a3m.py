"""Read and write ColabFold's alignments of complexes.

The first line, such as `#93,87<TAB>1,2`, has the lengths of the distinct sequences, and the number of chains with each
sequence. In the a3m below it, the distinct sequences are side by side. Paired rows have residues in several sequences,
other rows in one.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from os import PathLike

import numpy as np

from data_pipeline.features.complexes.alignments import EntityAlignment
from data_pipeline.features.complexes.chain_ids import MAX_CHAINS
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.features.msa import single_sequence
from data_pipeline.io.errors import InputError
from data_pipeline.parse.a3m import Alignment, checked_rows
from data_pipeline.parse.alignment_rows import GAP, MAX_ALIGNMENT_BYTES, AlignmentBuilder
from data_pipeline.parse.fasta import MAX_RESIDUES
from data_pipeline.parse.text_files import read_lines

_HEADER = re.compile(rb"#(\d{1,9}(?:,\d{1,9})*)\t(\d{1,9}(?:,\d{1,9})*)")


@dataclass(frozen=True, kw_only=True)
class ComplexAlignment:
    """Alignments of the distinct sequences of a complex, and the number of chains (`copies`) with each sequence."""

    entities: tuple[EntityAlignment, ...]
    copies: tuple[int, ...]

    def target(self, name: str, chain_ids: Iterable[str] = ()) -> ComplexTarget:
        """Return the complex, with chains of the same sequence next to each other.

        Without `chain_ids`, the chains are named A, B and so on.
        """
        sequences = [
            each.sequence for each, count in zip(self.entities, self.copies, strict=True) for _ in range(count)
        ]
        return ComplexTarget.of(name, sequences, tuple(chain_ids))


def is_complex_header(line: bytes) -> bool:
    """Return whether the first line of an a3m is ColabFold's header for several chains, of one or more sequences."""
    match = _HEADER.fullmatch(line)
    return match is not None and (b"," in line or int(match.group(2)) != 1)


def read_complex_a3m(path: str | PathLike[str]) -> ComplexAlignment:
    """Return the alignments in a plain or gzip a3m of ColabFold; raise `InputError` with `path` for other files."""
    return complex_a3m_from_lines(read_lines(path, MAX_ALIGNMENT_BYTES), path=path)


def complex_a3m_from_lines(lines: Iterator[bytes], *, path: str | PathLike[str]) -> ComplexAlignment:
    """Return the alignments in the lines of an a3m of ColabFold.

    As in ColabFold, rows that repeat an earlier row and its header are left out, and so are rows of only gaps; with a
    single sequence, no row is paired. Raise `InputError` with `path` if the first line is invalid, if the rows do not
    have the lengths in it, or if two of the distinct sequences are equal.
    """
    first = next(lines, b"").rstrip(b"\0 ")
    lengths, copies = _header(first, path)
    starts = np.cumsum([0, *lengths])
    spans = [slice(start, stop) for start, stop in pairwise(starts.tolist())]
    builder: AlignmentBuilder | None = None
    seen = set[bytes]()
    for record, text, row in checked_rows(chain([b""], lines), None, path):
        if builder is None and len(row) != starts[-1]:
            raise InputError.at(
                path,
                f"the sequences have {'+'.join(map(str, lengths))} = {starts[-1]} residues in the first line, "
                f"but the first row has {len(row)}",
                line=record.line,
                record=record.name,
            )
        builder = builder or AlignmentBuilder(path, len(row))
        key = hashlib.blake2b(b"%b\n%b" % (record.header, text), digest_size=16).digest()
        if key in seen:
            continue
        seen.add(key)
        insertions = None
        if len(text) != len(row):
            insertions = np.diff(np.flatnonzero(np.frombuffer(text, np.uint8) < ord("a")), prepend=-1) - 1
        builder.append(record.name, row, insertions)
    assert builder is not None
    whole = Alignment(names=tuple(builder.names), letters=builder.letters, deletion_matrix=builder.deletion_matrix)
    entities = tuple(_entities(whole, spans))
    if len({each.sequence for each in entities}) < len(entities):
        raise InputError.at(path, "two of the sequences are equal; list them once, with 2 copies", line=1)
    return ComplexAlignment(entities=entities, copies=copies)


def _header(line: bytes, path: str | PathLike[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lengths and the numbers of copies of the sequences."""
    match = _HEADER.fullmatch(line)
    if match is None:
        example = "#93,87<TAB>1,2"
        expected = f"the first line must be '#', lengths, a tab and numbers of copies, as in {example}"
        raise InputError.at(path, expected, line=1)
    lengths, copies = (tuple(map(int, group.split(b","))) for group in match.groups())
    problem: str | None = None
    if len(lengths) != len(copies):
        problem = f"got {len(lengths)} lengths and {len(copies)} numbers of copies; each sequence needs both"
    elif not all(lengths):
        problem = "a sequence has length 0; the length must be at least 1"
    elif not all(copies):
        problem = "a sequence has 0 copies; remove it, or set at least 1"
    elif sum(copies) > MAX_CHAINS:
        problem = f"got {sum(copies):,} chains; the maximum is {MAX_CHAINS:,}"
    elif (residues := sum(a * b for a, b in zip(lengths, copies, strict=True))) > MAX_RESIDUES:
        problem = f"the chains have {residues:,} residues; at most {MAX_RESIDUES:,} are allowed"
    if problem is not None:
        raise InputError.at(path, problem, line=1)
    return lengths, copies


def _entities(whole: Alignment, spans: list[slice]) -> Iterator[EntityAlignment]:
    """Yield each sequence with its paired rows and with the rows that have residues only in this sequence."""
    has_residues = np.stack([(whole.letters[:, span] != GAP).any(axis=1) for span in spans], axis=1)
    is_paired = has_residues.sum(axis=1) > 1
    for index, span in enumerate(spans):
        sequence = whole.query[span]
        own = ~is_paired & has_residues[:, index]
        yield EntityAlignment(
            sequence=sequence,
            unpaired=_selected(whole, own, span) if own.any() else None,
            paired=_selected(whole, is_paired, span) if len(spans) > 1 else single_sequence(sequence),
        )


def _selected(whole: Alignment, rows: np.ndarray, columns: slice) -> Alignment:
    """Return the alignment of the rows where the mask `rows` is true and of a range of columns."""
    return Alignment(
        names=tuple(whole.names[row] for row in np.flatnonzero(rows)),
        letters=whole.letters[rows, columns],
        deletion_matrix=whole.deletion_matrix[rows, columns],
    )
