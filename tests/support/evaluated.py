"""Results of evaluations, by value."""

from typing import Any

import numpy as np

from helixfold.analysis.evaluation import Evaluated
from helixfold.analysis.scores import ResidueScores, Scores


def evaluated(target: str, score: float, *, rank: int = 0, plddt: float | None = 80.0, **values: Any) -> Evaluated:
    """A comparison with different values for all scores; the prediction lacks the second of three residues."""
    residues = ResidueScores(
        number=np.array([0, 4, 9]),
        letters="GXW",
        present=np.array([True, False, True]),
        predicted_number=np.array([1, 0, 3]),
        lddt=np.array([0.25, np.nan, score]),
        lddt_ca=np.array([0.5, 0.0, score / 2]),
        plddt=None if plddt is None else np.array([plddt, np.nan, plddt / 2]),
    )
    scores = Scores(
        predicted_chain="A",
        reference_chain="H",
        residues=3,
        compared=2,
        identity=0.51234,
        lddt=score + 0.01,
        lddt_ca=score,
        tm_score=score + 0.02,
        gdt_ts=score + 0.03,
        gdt_ha=score + 0.04,
        rmsd=1.5 + score,
        plddt=plddt,
    )
    defaults = {"target": target, "rank": rank, "reference": f"{target}_ref", "by_sequence": False, "scores": scores}
    return Evaluated(**{**defaults, "residues": residues, **values})
