"""Scores of a prediction whose residues are those of a known chain, by what `helixfold evaluate` scores with."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from chains import CA, KnownChain
from jaxtyping import Float

from data_pipeline.protein import Protein
from data_pipeline.residues import THREE_LETTER
from data_pipeline.structure import Chain
from helixfold.analysis.residues import LEAST_RESIDUES, Pairing
from helixfold.analysis.scores import compared


@dataclass(frozen=True, kw_only=True)
class Score:
    """How near one prediction is; residues are those that the experiment observed, and what is missing is wrong."""

    lddt_ca: float
    tm: float
    plddt: float | None  # mean over residues, 0 to 100; None where nothing claims to know
    residue_lddt_ca: tuple[float, ...]
    residue_plddt: tuple[float, ...]  # empty where nothing claims to know

    def to_dict(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Score":
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def score(predicted: Protein | None, true: KnownChain, plddt: Float[np.ndarray, "r"] | None = None) -> Score:
    """Score a prediction of all of a chain's residues, of some, or of none; `plddt` is of all residues."""
    observed = true.mask[:, CA] > 0
    there = np.zeros(len(observed), bool) if predicted is None else observed & (predicted.atom_mask[:, CA] > 0)
    if predicted is None or there.sum() < LEAST_RESIDUES:
        nothing = (0.0,) * int(observed.sum())
        return Score(lddt_ca=0.0, tm=0.0, plddt=None, residue_lddt_ca=nothing, residue_plddt=())
    reference = _chain(true, true.positions, true.mask)
    own = _chain(true, predicted.atom_positions, predicted.atom_mask)
    whole, residues = compared(Pairing(predicted=own, reference=reference, place=np.arange(len(observed))))
    # A residue without a neighbour within 15 Angstrom has no distances to keep.
    kept = np.isfinite(residues.lddt_ca)
    return Score(
        lddt_ca=whole.lddt_ca,
        tm=whole.tm_score,
        plddt=None if plddt is None else float(plddt[observed].mean()),
        residue_lddt_ca=tuple(np.round(residues.lddt_ca[kept], 4).tolist()),
        residue_plddt=() if plddt is None else tuple(np.round(plddt[observed][kept].astype(float), 2).tolist()),
    )


def _chain(true: KnownChain, positions: Float[np.ndarray, "r 37 3"], mask: Float[np.ndarray, "r 37"]) -> Chain:
    return Chain(
        name="A",
        sequence=true.sequence,
        aatype=true.aatype,
        atom_positions=positions.astype(np.float32),
        atom_mask=mask.astype(np.float32),
        b_factors=np.zeros_like(mask, dtype=np.float32),
        observed=mask[:, CA] > 0,
        residue_names=tuple(THREE_LETTER[kind] for kind in true.aatype),
        residue_numbers=np.arange(1, len(true.aatype) + 1),
        insertion_codes=(" ",) * len(true.aatype),
    )
