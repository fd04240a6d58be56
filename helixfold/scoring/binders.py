"""Screen designed binders by the predicted errors between binder and target (Bennett et al. 2023)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from data_pipeline.errors import InputError
from data_pipeline.residues import ATOM_ORDER
from helixfold.analysis.metrics import superposition
from helixfold.prediction import Prediction
from helixfold.scoring.structures import ScoredStructure

_CA = ATOM_ORDER["CA"]


@dataclass(frozen=True, kw_only=True)
class BinderChains:
    """Names of the binder's chains in every complex; without names, the binder is the first chain of the file.

    Programs that design binders write them as the first chain, A.
    """

    names: tuple[str, ...] = ()

    def chain_names(self, structure: ScoredStructure) -> set[str]:
        """Return the names of the binder's chains in a structure.

        Raise `InputError` if the structure has no such chain, or none beside them.
        """
        own = [chain.name for chain in structure.chains]
        names = {*(self.names or own[:1])}
        if missing := sorted(names - {*own}):
            raise InputError(f"it has no chain {missing[0]}, the binder; its chains are {', '.join(own)}")
        if len(own) == len(names):
            raise InputError(f"it has no chain beside the binder ({', '.join(own)}); give complexes with the target")
        return names

    def mask(self, structure: ScoredStructure) -> Bool[np.ndarray, " r"]:
        """Return the mask of the binder's residues; raise `InputError` as `chain_names` does."""
        names = self.chain_names(structure)
        numbers = [number for number, chain in enumerate(structure.chains) if chain.name in names]
        return np.isin(structure.chain_index, numbers)


def binder_scores(
    structure: ScoredStructure, prediction: Prediction, binder: BinderChains
) -> dict[str, float | int | str | None]:
    """Return the scores of a designed binder, under the names that such screens have.

    `pae_interaction` is the mean predicted error between residues of binder and target, in both directions; designs
    below 10 Angstrom were found to succeed far more often. `target_aligned_rmsd` is by how far the network has moved
    the binder, with the targets superposed, and `binder_aligned_rmsd` how much it has changed it.
    """
    mask = binder.mask(structure)
    seen = structure.observed
    made, given = (each[:, _CA] for each in (prediction.protein.atom_positions, structure.positions))
    found: dict[str, float | int | str | None] = {
        "binder": ":".join(chain.sequence for chain in structure.chains if chain.name in binder.chain_names(structure)),
        "binder_plddt": float(prediction.plddt[mask].mean(dtype=np.float64)),
        "target_plddt": float(prediction.plddt[~mask].mean(dtype=np.float64)),
        "binder_aligned_rmsd": _rmsd(made, given, mask & seen, mask & seen),
        "target_aligned_rmsd": _rmsd(made, given, ~mask & seen, mask & seen),
    }
    if prediction.pae is not None:
        pae = prediction.pae.astype(np.float64)
        between = [pae[np.ix_(mask, ~mask)].mean(), pae[np.ix_(~mask, mask)].mean()]
        found |= {
            "pae_interaction": float(np.mean(between)),
            "pae_binder": float(pae[np.ix_(mask, mask)].mean()),
            "pae_target": float(pae[np.ix_(~mask, ~mask)].mean()),
        }
    return found


def _rmsd(made: np.ndarray, given: np.ndarray, aligned: np.ndarray, scored: np.ndarray) -> float | None:
    """Return the root mean square distance of some points in Angstrom, with others superposed; None without points."""
    if aligned.sum() < 3 or not scored.any():
        return None
    moved = superposition(made[aligned], given[aligned]).apply(made[scored].astype(np.float64))
    return float(np.sqrt(np.square(moved - given[scored]).sum(-1).mean()))
