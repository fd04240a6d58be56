"""Scores of a complex's chains and of its interfaces in every training step, without gradient.

They tell whether chains are folded right and put together wrong, which no loss of the whole complex does.
"""

import math

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from data_pipeline.residues import ATOM_ORDER
from helixfold.geometry.atoms import pseudo_beta
from helixfold.losses.heads import LDDT_LIMITS, distance_errors
from helixfold.losses.labels import Labels
from helixfold.model.evoformer import outer_mask
from helixfold.model.outputs import PredictedStructure

METRICS = ("chain_lddt_ca", "interface_lddt_ca", "native_contacts")

_CA = ATOM_ORDER["CA"]
# Angstrom between pseudo-beta atoms of residues that are in contact, as in CASP.
_CONTACT = 8.0


@torch.no_grad()
def chain_metrics(
    structure: PredictedStructure, labels: Labels, asym_id: Int[Tensor, "b r"]
) -> dict[str, Float[Tensor, " b"]]:
    """Return scores of the last structure by the names of `METRICS`, 0 to 1; NaN where a sample has nothing to score.

    `chain_lddt_ca` is the lDDT of C-alphas over the distances within chains alone, `interface_lddt_ca` the same between
    chains: the share of true distances below 15 Angstrom that the prediction preserves, as a mean over the limits 0.5,
    1, 2 and 4 Angstrom. `native_contacts` is the share of the true contacts between chains that the prediction has:
    pairs of residues whose C-betas (C-alpha of glycine) are at most 8 Angstrom apart.
    """
    same_chain = rearrange(asym_id, "b i -> b i 1") == rearrange(asym_id, "b j -> b 1 j")
    errors, counted = distance_errors(
        structure.positions[..., _CA, :], labels.all_atom_positions[..., _CA, :], labels.all_atom_mask[..., _CA]
    )
    preserved = torch.stack([(errors < limit).to(counted.dtype) for limit in LDDT_LIMITS]).mean(0)
    true_contacts = outer_mask(labels.pseudo_beta_mask) * (_distances(labels.pseudo_beta) <= _CONTACT) * ~same_chain
    found = (_distances(pseudo_beta(labels.aatype, structure.positions)) <= _CONTACT).to(counted.dtype)
    return {
        "chain_lddt_ca": _mean_or_nan(preserved, counted * same_chain),
        "interface_lddt_ca": _mean_or_nan(preserved, counted * ~same_chain),
        "native_contacts": _mean_or_nan(found, true_contacts),
    }


def _distances(points: Float[Tensor, "b r 3"]) -> Float[Tensor, "b r r"]:
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")


def _mean_or_nan(values: Float[Tensor, "b r r"], weight: Float[Tensor, "b r r"]) -> Float[Tensor, " b"]:
    total = weight.sum((1, 2))
    return torch.where(total > 0, (values * weight).sum((1, 2)) / total.clamp(min=1), math.nan)
