"""Fold designs again with another model, which has not seen them: what it finds is evidence, one's own pLDDT is not."""

from dataclasses import dataclass, replace

import numpy as np

from data_pipeline.complexes.pipeline import target_features
from data_pipeline.protein import Protein
from helixfold.analysis.metrics import superposed_scores
from helixfold.design.inputs import task_target
from helixfold.design.task import DesignTask
from helixfold.execution.stages import Stages
from helixfold.execution.whole import Whole
from helixfold.folding import FoldingOptions, fold
from helixfold.prediction import Prediction
from helixfold.weights.find import ReadyModel


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Prediction of a design by another model, and its distance to what the design was made for.

    `plddt` is the mean, 0 to 100. `tm_score` and `rmsd` (Angstrom) compare C-alpha atoms with the structure of the
    design, and `known_tm_score` those of fixed backbones with the backbone, None for other designs.
    """

    model: str
    plddt: float
    ptm: float | None
    iptm: float | None
    tm_score: float
    rmsd: float
    known_tm_score: float | None

    @property
    def agreement(self) -> float:
        """Return the product of pLDDT and TM-score, 0 to 1, by which checked designs are ranked."""
        return self.plddt / 100 * self.tm_score


def refolded(
    task: DesignTask, sequences: dict[str, str], model: ReadyModel, *, num_recycles: int | None, seed: int
) -> Prediction:
    """Return the prediction of a design's sequences, from them alone, as `helixfold predict` makes it."""
    features = target_features(task_target(task, sequences))
    options = FoldingOptions(num_recycles=num_recycles, seed=seed, cyclic=task.cyclic)
    return fold(model.network, Whole(), features, model.preset, options, stages=Stages(), notes=model.notes)


def checked(task: DesignTask, protein: Protein, prediction: Prediction) -> Checked:
    """Return how the prediction of a design by another model compares with the structure of the design."""
    found = superposed_scores(_alpha(prediction.protein), _alpha(protein))
    return Checked(
        model=prediction.model,
        plddt=float(prediction.plddt.mean()),
        ptm=prediction.ptm,
        iptm=prediction.iptm,
        tm_score=found.tm_score,
        rmsd=found.rmsd,
        known_tm_score=known_tm_score(task, prediction.protein),
    )


def known_tm_score(task: DesignTask, protein: Protein) -> float | None:
    """Return the TM-score of a structure to the backbone that it was designed for; None for other protocols."""
    if task.protocol != "fixbb":
        return None
    (chain,) = task.chains
    present = chain.mask[:, 1] > 0
    true = replace(protein, atom_positions=chain.positions.astype(np.float32), atom_mask=chain.mask)
    return superposed_scores(_alpha(protein)[present], _alpha(true)[present], len(present)).tm_score


def _alpha(protein: Protein) -> np.ndarray:
    return protein.positions_of("CA").astype(np.float32)
