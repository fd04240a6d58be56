"""Pairwise alignment of protein sequences; a `Mode` is the kind of alignment (see `align`)."""

from dataclasses import dataclass
from functools import cache
from math import exp
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from data_pipeline.residues import AMBIGUOUS_LETTERS, RESTYPES, RESTYPES_WITH_X
from data_pipeline.templates.result import RejectionReason, UnusableHitError

# The aligner needs two bytes of memory per pair of residues.
_MAX_CELLS = 2 * 10**8
# A gap of n residues costs 11 + n, as in BLAST.
_FIRST_GAP, _NEXT_GAP = -12, -1
# Extreme-value statistics of local alignments with BLOSUM62 and these gaps: Altschul & Gish, Methods Enzymol. 266
# (1996), table of gapped parameters.
_GUMBEL_LAMBDA, _GUMBEL_K = 0.267, 0.041
Mode = Literal["global", "local"]
_UNKNOWN_TO_X = {**dict.fromkeys(range(128), "X"), **{ord(letter): letter for letter in RESTYPES}}


@dataclass(frozen=True, kw_only=True)
class PairAlignment:
    """Alignment of a first sequence to a second.

    `partner` has the index in the second sequence of each residue's partner, or -1. `identities` is the number of
    aligned residues that are equal and known. `score` is BLOSUM62 with affine gap costs.
    """

    partner: Int[np.ndarray, "n"]  # index of each residue's partner in the second sequence, or -1
    identities: int  # aligned residues that are equal; unknown residues never count as equal
    score: float  # BLOSUM62 with affine gap costs

    def e_value(self, partner_length: int) -> float:
        """Return the E-value of this alignment, which must be local, to a sequence of `partner_length` residues.

        This is the expected number of local alignments with at least this score between two unrelated sequences.
        """
        return _GUMBEL_K * len(self.partner) * partner_length * exp(-_GUMBEL_LAMBDA * self.score)


def identity(query: str, letters: np.ndarray) -> float:
    """Return the fraction (0..1) of a template's residues that match the target, or 0 if it has no residues.

    `letters` has one character per residue of the target `query`, or '-' where the template has no residue.
    """
    aligned = letters != "-"
    return float(np.mean(letters[aligned] == np.array(list(query))[aligned])) if aligned.any() else 0.0


def align(mode: Mode, first: str, second: str) -> PairAlignment:
    """Align two protein sequences; raise `UnusableHitError` if they are too long to align.

    Mode "global" aligns two versions of one sequence over their full lengths (Needleman-Wunsch), without cost for gaps
    at the ends. "local" aligns the best-scoring segments of two sequences (Smith-Waterman), which may be empty.
    """
    if len(first) * len(second) > _MAX_CELLS:
        lengths = f"{len(first):,} and {len(second):,} residues"
        raise UnusableHitError(RejectionReason.TOO_LONG, f"sequences of {lengths} are too long to align")
    partner = np.full(len(first), -1, np.int64)
    identities, score = 0, 0.0
    alignments = _aligner(mode).align(first.translate(_UNKNOWN_TO_X), second.translate(_UNKNOWN_TO_X))
    # Use the first of equally good alignments, because counting them can take extremely long.
    alignment = next(iter(alignments), None)
    if alignment is not None:
        score = float(alignment.score)
        for (start, end), (partner_start, _) in zip(*alignment.aligned, strict=True):
            partner[start:end] = np.arange(partner_start, partner_start + end - start)
        aligned = np.flatnonzero(partner >= 0)
        letters, partner_letters = _letters(first)[aligned], _letters(second)[partner[aligned]]
        is_known = ~np.isin(letters, np.frombuffer(AMBIGUOUS_LETTERS.encode(), np.uint8))
        identities = int(np.sum((letters == partner_letters) & is_known))
    return PairAlignment(partner=partner, identities=identities, score=score)


def _letters(sequence: str) -> np.ndarray:
    return np.frombuffer(sequence.encode("ascii", "replace"), np.uint8)


@cache
def _aligner(mode: Mode) -> Any:
    """Return an aligner with BLOSUM62 and affine gap scores; in global mode, gaps at the ends cost nothing."""
    # The import is slow, and only templates need it.
    from Bio.Align import PairwiseAligner, substitution_matrices  # noqa: PLC0415

    aligner = PairwiseAligner(
        mode=mode,
        substitution_matrix=substitution_matrices.load("BLOSUM62").select(RESTYPES_WITH_X),
        open_gap_score=_FIRST_GAP,
        extend_gap_score=_NEXT_GAP,
    )
    if mode == "global":
        aligner.end_gap_score = 0
    return aligner
