"""Read and write ColabFold's alignment of a complex.

Its first line is `#93,87<TAB>1,2`: the lengths of the different sequences, and how many chains have each. In the a3m
that follows, all sequences stand side by side, once each; a row has residues in several of them, and then it is paired,
or in one.
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
    """Alignments of the different sequences of a complex, and how many chains have each sequence."""

    entities: tuple[EntityAlignment, ...]
    copies: tuple[int, ...]

    def target(self, name: str, chain_ids: Iterable[str] = ()) -> ComplexTarget:
        """Return the complex, in which chains of the same sequence are neighbours."""
        sequences = [
            each.sequence for each, count in zip(self.entities, self.copies, strict=True) for _ in range(count)
        ]
        return ComplexTarget.of(name, sequences, tuple(chain_ids))


def is_complex_header(line: bytes) -> bool:
    """Return whether the first line of an a3m says that it is the alignment of several chains."""
    found = _HEADER.fullmatch(line)
    return found is not None and (b"," in line or int(found.group(2)) != 1)


def read_complex_a3m(path: str | PathLike[str]) -> ComplexAlignment:
    """Return the alignments in a plain or gzip a3m of ColabFold; raise `InputError` with `path` for any other file."""
    return complex_a3m_from_lines(read_lines(path, MAX_ALIGNMENT_BYTES), path=path)


def complex_a3m_from_lines(lines: Iterator[bytes], *, path: str | PathLike[str]) -> ComplexAlignment:
    """Return the alignments in the lines of an a3m of ColabFold.

    As in ColabFold, rows that repeat an earlier one with its whole header are left out, and so are those of gaps
    alone; of one sequence alone, no row is paired. Raise `InputError` with `path` if the first line is not as it
    should be, or if the rows are not as long as it says.
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
                f"the first line says that the sequences have {'+'.join(map(str, lengths))} = {starts[-1]} residues, "
                f"and the first row has {len(row)}",
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
        raise InputError.at(path, "two of the sequences are equal; write them once, with 2 copies", line=1)
    return ComplexAlignment(entities=entities, copies=copies)


def _header(line: bytes, path: str | PathLike[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lengths of the sequences and the numbers of their copies."""
    found = _HEADER.fullmatch(line)
    if found is None:
        example = "#93,87<TAB>1,2"
        expected = f"an alignment of a complex begins with '#', lengths, a tab and numbers of copies, as in {example}"
        raise InputError.at(path, expected, line=1)
    lengths, copies = (tuple(map(int, group.split(b","))) for group in found.groups())
    problem: str | None = None
    if len(lengths) != len(copies):
        problem = f"it names {len(lengths)} lengths and {len(copies)} numbers of copies; each sequence has one of both"
    elif not all(lengths):
        problem = "a sequence has length 0; an empty chain cannot be predicted"
    elif not all(copies):
        problem = "a sequence has 0 copies; leave it out, or give at least 1"
    elif sum(copies) > MAX_CHAINS:
        problem = f"{sum(copies):,} chains are more than can be named; at most {MAX_CHAINS:,} are"
    elif (residues := sum(a * b for a, b in zip(lengths, copies, strict=True))) > MAX_RESIDUES:
        problem = f"the chains have {residues:,} residues; at most {MAX_RESIDUES:,} are allowed"
    if problem is not None:
        raise InputError.at(path, problem, line=1)
    return lengths, copies


def _entities(whole: Alignment, spans: list[slice]) -> Iterator[EntityAlignment]:
    """Yield each sequence with its rows: those with residues in several sequences, and those in this one alone."""
    has_residues = np.stack([(whole.letters[:, span] != GAP).any(axis=1) for span in spans], axis=1)
    is_paired = has_residues.sum(axis=1) > 1
    for number, span in enumerate(spans):
        sequence = whole.query[span]
        own = ~is_paired & has_residues[:, number]
        yield EntityAlignment(
            sequence=sequence,
            unpaired=_selected(whole, own, span) if own.any() else None,
            paired=_selected(whole, is_paired, span) if len(spans) > 1 else single_sequence(sequence),
        )


def _selected(whole: Alignment, rows: np.ndarray, columns: slice) -> Alignment:
    return Alignment(
        names=tuple(whole.names[row] for row in np.flatnonzero(rows)),
        letters=whole.letters[rows, columns],
        deletion_matrix=whole.deletion_matrix[rows, columns],
    )
