"""Scores of how a held-out complex is put together: DockQ and its parts, interface lDDT, and each chain alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from data_pipeline.residues import ATOM_ORDER, RESTYPES_WITH_X
from data_pipeline.structure import Chain
from helixfold.analysis import metrics
from helixfold.analysis.complexes import compare_complexes
from helixfold.analysis.residues import LEAST_RESIDUES
from helixfold.batch import MultimerBatch
from helixfold.losses.labels import Labels
from helixfold.model.confidence import tm_of_alignments
from helixfold.model.outputs import Outputs

# Least DockQ of an acceptable interface (Basu & Wallner 2016).
ACCEPTABLE = 0.23
_CA = ATOM_ORDER["CA"]


@dataclass(frozen=True, kw_only=True)
class InterfaceScores:
    """Scores of the chains of one held-out complex and of its interfaces; from 0 to 1 unless noted.

    Interfaces are the pairs of chains in contact in the true structure; their scores are means over them. Where a
    complex has nothing to score, a score is None: all those of interfaces if no chains touch, for instance.
    """

    chains: int  # of which residues were folded
    interfaces: int
    chain_lddt_ca: float | None  # mean over the chains, each with distances within itself alone
    chain_tm_score: float | None  # mean over the chains, each superposed alone
    dockq: float | None
    acceptable: float | None  # share of the interfaces with a DockQ of at least 0.23
    fnat: float | None  # share of the true contacts that are predicted
    irms: float | None  # Angstrom, of the backbones at an interface
    lrms: float | None  # Angstrom, of the shorter chain when the longer one is superposed
    interface_lddt: float | None  # over all distances between heavy atoms of different chains
    iptm: float | None  # predicted; None without an aligned-error head


def interface_scores(outputs: Outputs, labels: Labels, batch: MultimerBatch) -> InterfaceScores:
    """Return the scores of one predicted complex; `labels` are permuted to fit it where chains are equal.

    Equal chains are then assigned once more, to the largest sum of DockQ. A structure that is not finite scores 0.
    """
    chain = batch.asym_id[0].cpu().numpy()
    predicted = outputs.structure.positions[0].cpu().numpy()
    exists = outputs.structure.mask[0].cpu().numpy()
    true, observed = labels.all_atom_positions[0].cpu().numpy(), labels.all_atom_mask[0].cpu().numpy()
    places = [np.flatnonzero(chain == number) for number in np.unique(chain) if number]
    if not np.isfinite(predicted).all():
        return _nothing_right(len(places))
    sequence, number = batch.aatype[0].cpu().numpy(), batch.residue_index[0].cpu().numpy()
    ours, theirs = (
        [_chain(str(place), sequence[each], number[each], atoms[each], mask[each]) for place, each in enumerate(places)]
        for atoms, mask in ((predicted, exists), (true, observed))
    )
    compared = compare_complexes(ours, theirs)
    interfaces = compared.interfaces if compared is not None else ()
    alone = [
        (predicted[here, _CA], true[here, _CA])
        for each in places
        if len(here := each[observed[each, _CA] > 0]) >= LEAST_RESIDUES
    ]
    return InterfaceScores(
        chains=len(places),
        interfaces=len(interfaces),
        chain_lddt_ca=_mean([metrics.lddt(*points, np.arange(len(points[0]))) for points in alone]),
        chain_tm_score=_mean([metrics.superposed_scores(*points).tm_score for points in alone]),
        dockq=_mean([each.dockq for each in interfaces]),
        acceptable=_mean([each.dockq >= ACCEPTABLE for each in interfaces]),
        fnat=_mean([each.fnat for each in interfaces]),
        irms=_mean([each.irms for each in interfaces]),
        lrms=_mean([each.lrms for each in interfaces]),
        interface_lddt=compared.interface_lddt if compared is not None else None,
        iptm=_iptm(outputs, batch) if len(places) > 1 else None,
    )


def _nothing_right(chains: int) -> InterfaceScores:
    return InterfaceScores(
        chains=chains,
        interfaces=0,
        chain_lddt_ca=0.0,
        chain_tm_score=0.0,
        dockq=0.0,
        acceptable=0.0,
        fnat=0.0,
        irms=None,
        lrms=None,
        interface_lddt=0.0,
        iptm=None,
    )


def _chain(
    name: str,
    aatype: Int[np.ndarray, " r"],
    residue_index: Int[np.ndarray, " r"],
    positions: Float[np.ndarray, "r 37 3"],
    mask: Float[np.ndarray, "r 37"],
) -> Chain:
    observed: Bool[np.ndarray, " r"] = np.asarray((mask > 0).any(1))
    return Chain(
        name=name,
        sequence="".join(RESTYPES_WITH_X[each] for each in aatype),
        aatype=aatype,
        atom_positions=positions,
        atom_mask=mask,
        b_factors=np.zeros_like(mask),
        observed=observed,
        residue_names=("UNK",) * len(aatype),
        residue_numbers=residue_index + 1,
        insertion_codes=(" ",) * len(aatype),
    )


def _iptm(outputs: Outputs, batch: MultimerBatch) -> float | None:
    logits = outputs.logits.aligned_error
    if logits is None:
        return None
    other: torch.Tensor = batch.asym_id[:, :, None] != batch.asym_id[:, None]
    return float((tm_of_alignments(logits, batch.seq_mask, other) * batch.seq_mask).max())


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
