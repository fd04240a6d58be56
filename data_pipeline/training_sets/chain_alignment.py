"""Adapt the alignment of a slightly different sequence to the sequence of a chain.

Structure files often have another version of a sequence: only a domain was solved, a tag was added, or a residue was
mutated. The alignment is just as useful for this chain. `MIN_COVERAGE` of the chain's residues must be aligned to the
target of the alignment, and `MIN_IDENTITY` of these must match it.
"""

from os import PathLike

import numpy as np
from Bio.Align import PairwiseAligner
from jaxtyping import Int

from data_pipeline.io.errors import InputError
from data_pipeline.parse.a3m import Alignment
from data_pipeline.residues import AMBIGUOUS_LETTERS

MIN_IDENTITY = 0.9  # fraction of the chain's aligned residues that match the target of the alignment
MIN_COVERAGE = 0.8  # fraction of the chain's residues that are aligned to the target of the alignment

_MAX_ALIGNED_CELLS = 10**8  # residues of the target x residues of the chain
_ROWS_AT_ONCE = 2048
_GAP = ord("-")
_UNKNOWN = np.zeros(256, bool)
_UNKNOWN[np.frombuffer(AMBIGUOUS_LETTERS.encode(), np.uint8)] = True


def alignment_for_chain(alignment: Alignment, sequence: str, path: str | PathLike[str]) -> Alignment:
    """Return the alignment with `sequence` as its target; it is unchanged if `sequence` is already its target.

    Residues of the chain that the old target lacks become columns of gaps; residues of the old target that the chain
    lacks become insertions. Rows of only gaps are dropped. `path` is the file of the alignment, for messages. Raise
    `InputError` with `path` if coverage is below `MIN_COVERAGE` or identity below `MIN_IDENTITY` (unknown residues
    match any residue).
    """
    if alignment.query == sequence:
        return alignment
    columns = query_columns(alignment.query, sequence)
    chain = np.frombuffer(sequence.encode("ascii"), np.uint8)
    target = alignment.letters[0]
    is_aligned = columns >= 0
    is_equal = is_aligned & ((chain == target[columns]) | _UNKNOWN[chain] | _UNKNOWN[target[columns]])
    coverage, identity = float(np.mean(is_aligned)), float(is_equal.sum() / max(is_aligned.sum(), 1))
    if coverage < MIN_COVERAGE or identity < MIN_IDENTITY:
        raise InputError.at(
            path,
            f"it was made for another sequence: {coverage:.0%} of the chain's residues are aligned to its first row, "
            f"{identity:.0%} of these equal, and {MIN_COVERAGE:.0%} and {MIN_IDENTITY:.0%} are needed; search with the "
            f"sequence of the structure file",
        )
    parts = [
        _on_columns(
            alignment.letters[start : start + _ROWS_AT_ONCE],
            alignment.deletion_matrix[start : start + _ROWS_AT_ONCE],
            columns,
        )
        for start in range(0, len(alignment.letters), _ROWS_AT_ONCE)
    ]
    letters, deletions = map(np.concatenate, zip(*parts, strict=True))
    letters[0], deletions[0] = chain, 0
    has_residues = (letters != _GAP).any(axis=1)
    names = tuple(name for name, keep in zip(alignment.names, has_residues, strict=True) if keep)
    return Alignment(names=names, letters=letters[has_residues], deletion_matrix=deletions[has_residues])


def query_columns(query: str, sequence: str) -> Int[np.ndarray, "r"]:
    """Return the index of the residue of `query` that is aligned to each residue of `sequence`, or -1.

    All indices are -1 if the two sequences are too long to be aligned.
    """
    columns = np.full(len(sequence), -1, np.int64)
    start = query.find(sequence)
    if start >= 0:
        return np.arange(start, start + len(sequence))
    start = sequence.find(query)
    if start >= 0:
        columns[start : start + len(query)] = np.arange(len(query))
        return columns
    if len(query) * len(sequence) > _MAX_ALIGNED_CELLS:
        return columns
    aligner = PairwiseAligner(
        mode="global", match_score=2, mismatch_score=-2, open_gap_score=-5, extend_gap_score=-0.2, end_gap_score=0
    )
    for (first, end), (query_first, _) in zip(*aligner.align(sequence, query)[0].aligned, strict=True):
        columns[first:end] = np.arange(query_first, query_first + end - first)
    return columns


def _on_columns(
    letters: np.ndarray, deletion_matrix: np.ndarray, columns: Int[np.ndarray, "r"]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the letters and deletion counts of the rows at `columns`, with gaps where a column is -1."""
    is_aligned = columns >= 0
    aligned_columns = columns[is_aligned]
    residues = (letters != _GAP).astype(np.int64)
    # Cumulative number of residues of a row at each column, including insertions, after a first column of zeros.
    up_to = np.zeros((len(letters), letters.shape[1] + 1), np.int64)
    np.cumsum(residues + deletion_matrix, axis=1, out=up_to[:, 1:])
    before = np.concatenate([[0], aligned_columns[:-1] + 1])
    new_letters = np.full((len(letters), len(columns)), _GAP, np.uint8)
    new_letters[:, is_aligned] = letters[:, aligned_columns]
    deletions = np.zeros(new_letters.shape, np.int32)
    deletions[:, is_aligned] = up_to[:, aligned_columns + 1] - residues[:, aligned_columns] - up_to[:, before]
    return new_letters, deletions
