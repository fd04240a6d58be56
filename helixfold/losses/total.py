"""AlphaFold's training loss of a batch, by term and by sample."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.losses.ambiguity import renamed_truth
from helixfold.losses.chain_metrics import centre_of_mass_loss, chain_metrics
from helixfold.losses.chain_permutation import permuted_labels
from helixfold.losses.config import TERMS, LossConfig
from helixfold.losses.fape import UNIT, backbone_fape, chain_backbone_fape, sidechain_fape
from helixfold.losses.heads import (
    aligned_error_loss,
    distogram_loss,
    experimentally_resolved_loss,
    has_resolution,
    lddt_loss,
    masked_msa_loss,
    smooth_lddt_loss,
)
from helixfold.losses.labels import ComplexLabels, Labels
from helixfold.losses.torsion import angle_norm_loss, torsion_loss
from helixfold.losses.violations import violation_loss
from helixfold.model.batch import Batch, MultimerBatch, with_chains
from helixfold.model.geometry.observed import groups_and_chis_from_atom37
from helixfold.model.outputs import Outputs

_BACKBONE_GROUP = 0  # index among the eight rigid groups


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Losses of each sample: the terms without gradient, their weighted sum, and the total with gradient.

    `total` is `weighted` times the square root of the number of residues. Complexes also have `metrics`; see
    `chain_metrics`.
    """

    unweighted: dict[str, Float[Tensor, " b"]]
    weighted: Float[Tensor, " b"]
    total: Float[Tensor, " b"]
    metrics: dict[str, Float[Tensor, " b"]] = field(default_factory=dict)

    def terms(self) -> dict[str, Float[Tensor, " b"]]:
        """Return the unweighted terms, their weighted sum and the total by name, without gradient, for logs."""
        return {**self.unweighted, "weighted": self.weighted.detach(), "total": self.total.detach()}


def total_loss(outputs: Outputs, batch: Batch, labels: Labels, config: LossConfig) -> Losses:
    """Return AlphaFold's loss (Suppl. Eq. 7) of the model's outputs for `batch`, in float32.

    The total is the weighted sum times the square root of the number of residues (Suppl. Sec. 1.11.3), so that short
    chains count less than long ones. Terms of weight 0 are not computed. The host does not wait for a GPU, unless a
    complex has equal chains.

    The truth of a complex is permuted to fit the prediction (`ComplexLabels`), and its backbone FAPE has the pairs
    within chains only (AlphaFold-Multimer, Sec. 2.5).
    """
    structure, logits = outputs.structure, outputs.logits
    if isinstance(labels, ComplexLabels):
        labels = permuted_labels(structure, with_chains(batch), labels)
    with torch.no_grad():
        groups, torsions = groups_and_chis_from_atom37(labels.aatype, labels.all_atom_positions, labels.all_atom_mask)
        truth = renamed_truth(structure.atom14[-1], labels, groups)
        backbone, backbone_mask = groups.frames[..., _BACKBONE_GROUP], groups.mask[..., _BACKBONE_GROUP]
        clamp = torch.where(labels.use_clamped_fape > 0, config.fape_clamp, math.inf)
        resolved = has_resolution(labels, config.min_resolution, config.max_resolution)
    terms: dict[str, Callable[[], Tensor]] = {
        "backbone_fape": lambda: (
            chain_backbone_fape(structure.frames, backbone, backbone_mask, clamp, batch.asym_id, within=True, unit=UNIT)
            if isinstance(batch, MultimerBatch)
            else backbone_fape(structure.frames, backbone, backbone_mask, clamp)
        ),
        "sidechain_fape": lambda: sidechain_fape(structure, truth, labels.aatype, config.fape_clamp),
        "torsion": lambda: torsion_loss(structure.torsions, torsions),
        "angle_norm": lambda: angle_norm_loss(structure.unnormalized_torsions, batch.seq_mask),
        "distogram": lambda: distogram_loss(logits.distogram, labels.pseudo_beta, labels.pseudo_beta_mask),
        "masked_msa": lambda: masked_msa_loss(logits.masked_msa, labels.true_msa, labels.bert_mask),
        "lddt": lambda: lddt_loss(logits.lddt, structure.positions, labels) * resolved,
        "experimentally_resolved": lambda: (
            experimentally_resolved_loss(logits.experimentally_resolved, labels) * resolved
        ),
        "aligned_error": lambda: (
            torch.zeros_like(batch.seq_mask[:, 0])
            if logits.aligned_error is None
            else aligned_error_loss(logits.aligned_error, structure.frames[-1], backbone, backbone_mask) * resolved
        ),
        "violation": lambda: violation_loss(
            structure,
            labels,
            batch,
            tolerance_factor=config.violation_tolerance_factor,
            overlap_tolerance=config.clash_overlap_tolerance,
        ),
        "smooth_lddt": lambda: smooth_lddt_loss(structure.frames, labels),
        "interface_fape": lambda: chain_backbone_fape(
            structure.frames,
            backbone,
            backbone_mask,
            torch.full_like(clamp, config.interface_clamp),
            with_chains(batch).asym_id,
            within=False,
            unit=config.interface_unit,
        ),
        "centre_of_mass": lambda: centre_of_mass_loss(structure.positions, labels, with_chains(batch).asym_id),
    }
    computed = {name: terms[name]() for name in TERMS if getattr(config, name) > 0}
    values = torch.stack(list(computed.values())) if computed else batch.seq_mask.new_zeros(0, len(batch.seq_mask))
    weighted = _weights(config, tuple(computed), values.dtype, values.device) @ values
    return Losses(
        unweighted=dict(zip(computed, values.detach(), strict=True)),
        weighted=weighted,
        total=weighted * batch.seq_mask.sum(-1).sqrt(),
        metrics=chain_metrics(structure, labels, batch.asym_id) if isinstance(batch, MultimerBatch) else {},
    )


@cache
def _weights(
    config: LossConfig, names: tuple[str, ...], dtype: torch.dtype, device: torch.device
) -> Float[Tensor, " terms"]:
    """Return the weights of these terms in `config` as a tensor."""
    return torch.tensor([getattr(config, name) for name in names], dtype=dtype, device=device)
