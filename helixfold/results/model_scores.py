"""Add confidence scores to a ModelCIF model: scores of the model, its residues, its chains and pairs of chains.

`HELIXFOLD` describes this program in ModelCIF, and `PAE_METRIC` is the number under which files define PAE.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import modelcif
import modelcif.model
import modelcif.qa_metric
import numpy as np
from jaxtyping import Float

from data_pipeline.protein import Protein
from helixfold import __version__

# This program as an entry of a ModelCIF file.
HELIXFOLD: Final = modelcif.Software(
    name="helixfold",
    classification="model building",
    description="Structure prediction with the AlphaFold 2 network in PyTorch",
    location=None,
    version=__version__,
)
# modelcif numbers the kinds of scores in the order in which they are added. PAE is always the third.
PAE_METRIC: Final = 3


@dataclass(frozen=True, kw_only=True)
class ModelScores:
    """Confidence scores of a model for its ModelCIF file; scores that are None are left out."""

    plddt: Float[np.ndarray, "r"] | None = None  # 0 to 100; None: mean B-factors of the residues that have atoms
    ptm: float | None = None
    iptm: float | None = None
    tm_by_chain: Float[np.ndarray, "k k"] | None = None  # see `TmScores.by_chain`
    has_pae: bool = False  # The errors are in a separate file.


class _GlobalPLDDT(modelcif.qa_metric.Global, modelcif.qa_metric.PLDDT):  # type: ignore[misc]
    """Mean of the predicted lDDT-CA over all residues, 0 to 100"""

    name, software = "pLDDT", HELIXFOLD


class _LocalPLDDT(modelcif.qa_metric.Local, modelcif.qa_metric.PLDDT):  # type: ignore[misc]
    """Predicted lDDT-CA of the residue, 0 to 100"""

    name, software = "pLDDT", HELIXFOLD


class _PAE(modelcif.qa_metric.MetricMode, modelcif.qa_metric.PAE):  # type: ignore[misc]
    """Predicted aligned error of the second residue, aligned on the first, in Angstrom; see the associated file"""

    # modelcif's class for pairs is not used, because it would write the values into the model's own file.
    name, mode, software = "PAE", "local-pairwise", HELIXFOLD


class _GlobalPTM(modelcif.qa_metric.Global, modelcif.qa_metric.PTM):  # type: ignore[misc]
    """Predicted TM-score, 0 to 1"""

    name, software = "pTM", HELIXFOLD


class _GlobalIpTM(modelcif.qa_metric.Global, modelcif.qa_metric.IpTM):  # type: ignore[misc]
    """Predicted TM-score of the chains relative to each other, 0 to 1"""

    name, software = "ipTM", HELIXFOLD


class _ChainPTM(modelcif.qa_metric.Feature, modelcif.qa_metric.PTM):  # type: ignore[misc]
    """Predicted TM-score of the chain, 0 to 1"""

    name, software = "pTM of a chain", HELIXFOLD


class _PairIpTM(modelcif.qa_metric.FeaturePairwise, modelcif.qa_metric.IpTM):  # type: ignore[misc]
    """Predicted TM-score of two chains relative to each other, the better of both directions, 0 to 1"""

    name, software = "ipTM of two chains", HELIXFOLD


def add_scores(
    model: modelcif.model.Model, protein: Protein, units: Sequence[modelcif.AsymUnit], scores: ModelScores
) -> None:
    """Add the scores and the list of residues without atoms to a model; `units` are the protein's chains.

    The mean pLDDT is over all residues, or over residues with atoms if it comes from B-factors. Only residues with
    atoms get a pLDDT of their own, because the dictionary requires every scored residue to have atoms.
    """
    mask = protein.atom_mask > 0.5
    modelled = np.asarray(mask.any(-1))
    plddt, scored = scores.plddt, np.ones_like(modelled)
    if plddt is None:
        plddt = np.where(mask, protein.b_factors, 0.0).sum(-1) / np.maximum(mask.sum(-1), 1)
        scored = modelled
    residues = [unit.residue(seq_id) for unit in units for seq_id in range(1, len(unit.entity.sequence) + 1)]
    model.qa_metrics.append(_GlobalPLDDT(f"{plddt[scored].mean():.2f}"))
    model.qa_metrics += [_LocalPLDDT(residues[i], f"{plddt[i]:.2f}") for i in np.flatnonzero(modelled).tolist()]
    if scores.has_pae:
        model.qa_metrics.append(_PAE())
    for kind, value in ((_GlobalPTM, scores.ptm), (_GlobalIpTM, scores.iptm)):
        if value is not None:
            model.qa_metrics.append(kind(f"{value:.4f}"))
    if scores.tm_by_chain is not None and len(units) > 1:
        model.qa_metrics += _chain_scores(units, scores.tm_by_chain)
    model.not_modeled_residue_ranges += [
        modelcif.model.NotModeledResidueRange(residues[i].asym, residues[i].seq_id, residues[i].seq_id)
        for i in np.flatnonzero(~modelled).tolist()
    ]


def _chain_scores(units: Sequence[modelcif.AsymUnit], tm: Float[np.ndarray, "k k"]) -> Iterator[Any]:
    chains = [modelcif.EntityInstanceFeature([unit]) for unit in units]
    for index, chain in enumerate(chains):
        yield _ChainPTM(chain, f"{tm[index, index]:.4f}")
    for first, second in combinations(range(len(chains)), 2):
        value = max(tm[first, second], tm[second, first])
        yield _PairIpTM(chains[first], chains[second], f"{value:.4f}")
