"""Results of comparing predictions with references, and their summary.

`MEASURES` are the names of the scores of a chain that are summarized.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from helixfold.analysis.complexes import ComplexComparison
from helixfold.analysis.scores import ResidueScores, Scores

MEASURES = ("lddt", "lddt_ca", "tm_score", "gdt_ts", "gdt_ha", "rmsd", "plddt")
_DIGITS = 4
# Minimum number of values for a correlation.
_MIN_CORRELATED_VALUES = 3


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Result of comparing a prediction with a reference: their most similar chains, and their complexes.

    `target` and `reference` are names, and `rank` counts a target's predictions from 0, the best. `by_sequence` is
    whether the reference was matched by its sequence, not by its name. `complex` is None unless both have at least two
    chains of the same proteins.
    """

    target: str
    rank: int  # among the target's predictions, 0 is the best
    reference: str
    by_sequence: bool  # the reference was matched by its sequence, not by its name
    scores: Scores
    residues: ResidueScores
    complex: ComplexComparison | None = None  # if both have at least two chains of the same proteins


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Summary of an evaluation, over the best-ranked prediction of each target.

    `count` is the number of pairs of such a prediction and a reference. `means` and `medians` are by measure. Pearson
    correlations are of pLDDT with lDDT-CA: of the means of targets, and of residues; None if they are not defined.
    """

    count: int  # pairs of prediction and reference
    means: dict[str, float]
    medians: dict[str, float]
    pearson_targets: float | None  # of mean pLDDT with lDDT-CA, target by target
    pearson_residues: float | None  # of pLDDT with lDDT-CA, residue by residue


def summary_of(results: Sequence[Evaluated]) -> Summary:
    """Return means and medians of the best-ranked predictions' scores, and the correlation of pLDDT with lDDT-CA.

    Numbers are rounded to four digits after the point.
    """
    best = first_ranks(results)
    values = {
        name: np.array([value for each in best if (value := getattr(each.scores, name)) is not None])
        for name in MEASURES
    }
    confident = [each for each in best if each.scores.plddt is not None]
    per_residue = [
        (each.residues.plddt, each.residues.lddt_ca) for each in confident if each.residues.plddt is not None
    ]
    return Summary(
        count=len(best),
        means={name: round(float(numbers.mean()), _DIGITS) for name, numbers in values.items() if len(numbers)},
        medians={name: round(float(np.median(numbers)), _DIGITS) for name, numbers in values.items() if len(numbers)},
        pearson_targets=_pearson(
            np.array([each.scores.plddt for each in confident], np.float64),
            np.array([each.scores.lddt_ca for each in confident], np.float64),
        ),
        pearson_residues=_pearson(*map(np.concatenate, zip(*per_residue, strict=True))) if per_residue else None,
    )


def first_ranks(results: Sequence[Evaluated]) -> list[Evaluated]:
    """Return the best-ranked prediction of each target for each of its references."""
    best: dict[tuple[str, str], Evaluated] = {}
    for each in results:
        key = each.target, each.reference
        if key not in best or each.rank < best[key].rank:
            best[key] = each
    return list(best.values())


def _pearson(one: np.ndarray, other: np.ndarray) -> float | None:
    """Return the rounded correlation of the pairs that are finite, or None if there are few or one side is constant."""
    is_finite = np.isfinite(one) & np.isfinite(other)
    one, other = one[is_finite], other[is_finite]
    if len(one) < _MIN_CORRELATED_VALUES or one.std() == 0 or other.std() == 0:
        return None
    return round(float(np.corrcoef(one, other)[0, 1]), _DIGITS)
