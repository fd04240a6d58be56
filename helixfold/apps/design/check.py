"""Check designs with models that did not design them, because the pLDDT of the designing model is not evidence.

Two control sequences are checked in the same way: a shuffled copy of the design, and random residues. A design is
convincing only if its pLDDT by the checking model, and its agreement with the designing model, exceed both controls.
`CONTROLS` are the names of the two kinds, `SHUFFLED` and `RANDOM`.
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

# Kinds of control sequences.
SHUFFLED, RANDOM = CONTROLS = ("shuffled", "random")
_SHORT_DIGEST_DIGITS: Final = 12  # enough to identify a model


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Mean pLDDT (0 to 100) of a checking model's prediction, and its TM-score to the designing model's structure."""

    plddt: float
    tm_score: float

    @property
    def product(self) -> float:
        """Return pLDDT / 100 times the TM-score, 0 to 1, by which checked designs are ranked."""
        return self.plddt / 100 * self.tm_score


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Scores of the prediction of a design by another model, the checking model.

    `agreement` and `rmsd` (Å, C-alpha atoms) compare the prediction with the design's own structure. `known_tm_score`
    compares it with the backbone that a sequence was designed for, and is None for other designs. `controls` has the
    agreement of each kind of control sequence (`CONTROLS`). `ptm` and `iptm` are None for models without them.
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
        """Return whether the design's pLDDT and TM-score are both higher than the same scores of every control."""
        own = self.agreement
        return all(own.plddt > each.plddt and own.tm_score > each.tm_score for each in self.controls.values())


def strictest(checks: Sequence[Checked]) -> Checked:
    """Return the least favourable check of a design.

    Checks that do not beat their controls come first, and then the smallest product of pLDDT and TM-score.
    """
    return min(checks, key=lambda each: (each.beats_controls, each.agreement.product))


def short_digest(model: ReadyModel) -> str:
    """Return the first 12 digits of the digest of a model's parameters."""
    return model.digest[:_SHORT_DIGEST_DIGITS]


def refolded(
    task: DesignTask, sequences: Mapping[str, str], model: ReadyModel, *, num_recycles: int | None, seed: int
) -> Prediction:
    """Predict a design's sequences (by chain) without alignments and templates, as `helixfold predict` does.

    `num_recycles` None is the model's own number.
    """
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
    """Compare the `prediction` of a design by another model with the design's structure `protein`.

    `model` is the checking model, and `controls` has the agreement of each kind of control sequence.
    """
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
    """Return the mean pLDDT of a checking model's prediction, and its TM-score to the designed structure `protein`."""
    scores = superposed_scores(_alpha(prediction.protein), _alpha(protein))
    return Agreement(plddt=float(prediction.plddt.mean()), tm_score=scores.tm_score)


def control_designs(designer: Designer, sequences: Mapping[str, str], number: int) -> dict[str, Design]:
    """Return the controls of the design `number`, by kind, with structures predicted by the first designing model.

    Their fixed residues are the same as in the design. Free residues are the design's in random order, or random.
    """
    task_input = designer.inputs[0]
    letters = "".join(sequences[name] for name in task_input.given.chain_ids)
    is_free = task_input.is_free[0].cpu().numpy()
    changed = {kind: control_sequence(letters, is_free, kind, designer, number) for kind in CONTROLS}
    return {kind: designer.evaluated(sequence, designer.begin(number), number) for kind, sequence in changed.items()}


def control_sequence(letters: str, is_free: Bool[np.ndarray, "r"], kind: str, designer: Designer, number: int) -> str:
    """Return a design's sequence with its free residues shuffled, or drawn at random from the allowed amino acids.

    `letters` has all residues, in the order in which the network reads them. `kind` is one of `CONTROLS`. The kind and
    the design's seed determine the result.
    """
    options = designer.options
    random = np.random.default_rng([zlib.crc32(kind.encode()), options.seed + number])
    residues = np.array(list(letters))
    allowed = [letter for letter in RESTYPES if letter not in options.excluded]
    free = residues[is_free]
    residues[is_free] = random.permutation(free) if kind == SHUFFLED else random.choice(allowed, len(free))
    return "".join(residues.tolist())


def known_tm_score(task: DesignTask, protein: Protein) -> float | None:
    """Return the TM-score of a structure to the backbone that its sequence was designed for.

    Return None for tasks that are not of the protocol "fixbb".
    """
    if task.protocol != "fixbb":
        return None
    (chain,) = task.chains
    present = chain.mask[:, 1] > 0
    true = replace(protein, atom_positions=chain.positions.astype(np.float32), atom_mask=chain.mask)
    return superposed_scores(_alpha(protein)[present], _alpha(true)[present], len(present)).tm_score


def _alpha(protein: Protein) -> np.ndarray:
    return protein.positions_of("CA").astype(np.float32)
