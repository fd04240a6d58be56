"""Compare what a network predicts of a mutant with what it predicts of the wild type."""

from collections.abc import Mapping

import numpy as np

from data_pipeline.residues import ATOM_ORDER
from helixfold.analysis.metrics import residue_lddt, rmsd
from helixfold.prediction import Prediction
from helixfold.scoring.mutations import Mutant

_CA = ATOM_ORDER["CA"]


def changes_of(mutant: Mutant, made: Prediction, wild_type: Prediction) -> Mapping[str, float | None]:
    """Return the scores of a mutant, and their differences to the wild type's.

    pLDDT is from 0 to 100 and PAE in Angstrom, both means over all residues or pairs; `site_` values are those of the
    substituted residues. lDDT is that of C-alpha atoms, from 0 to 1, of the mutant's structure to the wild type's.
    """
    sites = [each.position.index for each in mutant.substitutions]
    alpha, own = (each.protein.atom_positions[:, _CA] for each in (made, wild_type))
    by_residue, lddt = residue_lddt(alpha, own, np.arange(len(alpha)))
    near = by_residue[sites]
    return {
        "plddt": _mean(made.plddt),
        "plddt_change": _mean(made.plddt) - _mean(wild_type.plddt),
        "site_plddt_change": _mean(made.plddt[sites]) - _mean(wild_type.plddt[sites]),
        "pae_change": _difference(_mean_pae(made), _mean_pae(wild_type)),
        "site_pae_change": _difference(_mean_pae(made, sites), _mean_pae(wild_type, sites)),
        "ptm_change": _difference(made.ptm, wild_type.ptm),
        "iptm_change": _difference(made.iptm, wild_type.iptm),
        "lddt": lddt,
        "site_lddt": float(near[np.isfinite(near)].mean()) if np.isfinite(near).any() else None,
        "rmsd": rmsd(alpha, own),
    }


def _mean(values: np.ndarray) -> float:
    return float(values.mean(dtype=np.float64))


def _mean_pae(prediction: Prediction, sites: list[int] | None = None) -> float | None:
    """Return the mean predicted error in Angstrom of all pairs, or of those with one of some residues, both ways."""
    if prediction.pae is None:
        return None
    if sites is None:
        return _mean(prediction.pae)
    return (_mean(prediction.pae[sites]) + _mean(prediction.pae[:, sites])) / 2


def _difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other
