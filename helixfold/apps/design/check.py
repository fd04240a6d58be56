"""Predict designs with models that did not design them; the pLDDT of the designing model is not evidence.

The same is done for sequences that nobody designed, a shuffled copy of each design and a random sequence: a design
counts only where the other model is surer of it, and agrees better with the model that designed it, than of both.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from jaxtyping import Bool

from data_pipeline.features.complexes.pipeline import target_features
from data_pipeline.protein import Protein
from data_pipeline.residues import RESTYPES
from helixfold.analysis.metrics import superposed_scores
from helixfold.apps.design.designer import Design, Designer
from helixfold.apps.design.inputs import task_target
from helixfold.apps.design.task import DesignTask
from helixfold.execution.stages import Stages
from helixfold.execution.whole import Whole
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget, fold
from helixfold.weights.find import ReadyModel

SHUFFLED, RANDOM = CONTROLS = ("shuffled", "random")
_MOST_DIGITS: Final = 12  # of a model's digest, enough to identify it


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Mean pLDDT (0 to 100) of a checking model, and the TM-score of its prediction to the designed structure."""

    plddt: float
    tm_score: float

    @property
    def product(self) -> float:
        """Return pLDDT / 100 times the TM-score, 0 to 1, by which checked designs are ranked."""
        return self.plddt / 100 * self.tm_score


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Prediction of a design by another model, and its distance to what the design was made for.

    `tm_score` in `agreement` and `rmsd` (Angstrom) compare C-alpha atoms with the structure of the design, and
    `known_tm_score` compares a design for a fixed backbone with that backbone (None for other designs). `controls` maps
    each kind of control sequence (`CONTROLS`) to its agreement.
    """

    model: str
    digest: str  # the beginning of the digest of the model's parameters
    agreement: Agreement
    ptm: float | None
    iptm: float | None
    rmsd: float
    known_tm_score: float | None
    controls: Mapping[str, Agreement]

    @property
    def beats_controls(self) -> bool:
        """Return whether pLDDT and TM-score of the design are higher than the scores of every control."""
        own = self.agreement
        return all(own.plddt > each.plddt and own.tm_score > each.tm_score for each in self.controls.values())


def strictest(checks: Sequence[Checked]) -> Checked:
    """Return the least favourable check: one whose controls score as well, or the one with the smallest product."""
    return min(checks, key=lambda each: (each.beats_controls, each.agreement.product))


def short_digest(model: ReadyModel) -> str:
    """Return the beginning of the digest of a model's parameters."""
    return model.digest[:_MOST_DIGITS]


def refolded(
    task: DesignTask, sequences: Mapping[str, str], model: ReadyModel, *, num_recycles: int | None, seed: int
) -> Prediction:
    """Return the prediction of a design's sequences, from them alone, as `helixfold predict` makes it."""
    features = target_features(task_target(task, dict(sequences)))
    options = FoldingOptions(num_recycles=num_recycles, seed=seed, cyclic=task.cyclic)
    (prediction,) = fold(
        model.network, model.preset, [FoldingTarget(features=features)], options, Whole(), stages=Stages()
    )
    return prediction


def checked(
    task: DesignTask,
    protein: Protein,
    prediction: Prediction,
    model: ReadyModel,
    controls: Mapping[str, Agreement],
) -> Checked:
    """Return how the prediction of a design by another model compares with the structure of the design."""
    return Checked(
        model=prediction.model,
        digest=short_digest(model),
        agreement=agreement(protein, prediction),
        ptm=prediction.ptm,
        iptm=prediction.iptm,
        rmsd=superposed_scores(_alpha(prediction.protein), _alpha(protein)).rmsd,
        known_tm_score=known_tm_score(task, prediction.protein),
        controls=controls,
    )


def agreement(protein: Protein, prediction: Prediction) -> Agreement:
    """Return the confidence of another model in its prediction, and the similarity of the prediction to `protein`."""
    found = superposed_scores(_alpha(prediction.protein), _alpha(protein))
    return Agreement(plddt=float(prediction.plddt.mean()), tm_score=found.tm_score)


def control_designs(designer: Designer, sequences: Mapping[str, str], number: int) -> dict[str, Design]:
    """Return the controls of a design, by their kind, as the first designing model predicts them.

    They have the residues that are fixed, and elsewhere the design's own in another order or random amino acids.
    """
    given = designer.inputs[0]
    letters = "".join(sequences[name] for name in given.given.chain_ids)
    is_free = given.is_free[0].cpu().numpy()
    changed = {kind: control_sequence(letters, is_free, kind, designer, number) for kind in CONTROLS}
    return {kind: designer.evaluated(sequence, designer.begin(number), number) for kind, sequence in changed.items()}


def control_sequence(letters: str, is_free: Bool[np.ndarray, "r"], kind: str, designer: Designer, number: int) -> str:
    """Return a design's sequence with its free residues shuffled, or drawn at random from the allowed amino acids."""
    options = designer.options
    random = np.random.default_rng([zlib.crc32(kind.encode()), options.seed + number])
    found = np.array(list(letters))
    allowed = [letter for letter in RESTYPES if letter not in options.excluded]
    free = found[is_free]
    found[is_free] = random.permutation(free) if kind == SHUFFLED else random.choice(allowed, len(free))
    return "".join(found.tolist())


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
