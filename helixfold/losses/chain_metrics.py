"""Scores of the chains and interfaces of a complex during training, and a loss for chains that are too near.

Scores have no gradient. They show whether chains are folded correctly but placed wrongly, which losses of the whole
complex do not show. The loss keeps predicted chains from overlapping. It is described in the paper of
AlphaFold-Multimer but is not in DeepMind's program.
"""

import math

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from data_pipeline.residues import ATOM_ORDER
from helixfold.losses.heads import LDDT_LIMITS, distance_errors
from helixfold.losses.labels import Labels
from helixfold.model.evoformer import outer_mask
from helixfold.model.geometry.atoms import pseudo_beta
from helixfold.model.geometry.rigid import length
from helixfold.model.outputs import PredictedStructure

# Names of the scores of `chain_metrics`.
METRICS = ("chain_lddt_ca", "interface_lddt_ca", "native_contacts")

_CA = ATOM_ORDER["CA"]
# Angstrom, maximum distance of pseudo-beta atoms in contact, as in CASP.
_CONTACT = 8.0


@torch.no_grad()
def chain_metrics(
    structure: PredictedStructure, labels: Labels, asym_id: Int[Tensor, "b r"]
) -> dict[str, Float[Tensor, " b"]]:
    """Return scores (0 to 1) of the predicted structure by name in `METRICS`; NaN if a sample has nothing to score.

    `chain_lddt_ca` is the C-alpha lDDT of distances within chains, `interface_lddt_ca` of distances between chains: the
    fraction of true distances below 15 Angstrom that the prediction preserves, averaged over the limits 0.5, 1, 2 and 4
    Angstrom. `native_contacts` is the fraction of the true contacts between chains that the prediction has; in a
    contact, two C-betas (C-alpha of glycine) are at most 8 Angstrom apart.
    """
    same_chain = rearrange(asym_id, "b i -> b i 1") == rearrange(asym_id, "b j -> b 1 j")
    errors, counted = distance_errors(
        structure.positions[..., _CA, :], labels.all_atom_positions[..., _CA, :], labels.all_atom_mask[..., _CA]
    )
    preserved = torch.stack([(errors < limit).to(counted.dtype) for limit in LDDT_LIMITS]).mean(0)
    true_contacts = outer_mask(labels.pseudo_beta_mask) * (_distances(labels.pseudo_beta) <= _CONTACT) * ~same_chain
    predicted_contacts = (_distances(pseudo_beta(labels.aatype, structure.positions)) <= _CONTACT).to(counted.dtype)
    return {
        "chain_lddt_ca": _mean_or_nan(preserved, counted * same_chain),
        "interface_lddt_ca": _mean_or_nan(preserved, counted * ~same_chain),
        "native_contacts": _mean_or_nan(predicted_contacts, true_contacts),
    }


def _distances(points: Float[Tensor, "b r 3"]) -> Float[Tensor, "b r r"]:
    """Return the distances between all points of a sample."""
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")


def _mean_or_nan(values: Float[Tensor, "b r r"], weight: Float[Tensor, "b r r"]) -> Float[Tensor, " b"]:
    """Return the weighted mean of each sample, or NaN if its weights are all 0."""
    total = weight.sum((1, 2))
    return torch.where(total > 0, (values * weight).sum((1, 2)) / total.clamp(min=1), math.nan)


_TOLERANCE = 4.0  # Angstrom by which two centres may be too near without a loss
_UNIT = 20.0  # Angstrom that count as an error of 1
# Added to squared distances, so that the root has a gradient if two centres coincide, and to counts.
_SMALL_DISTANCE, _COUNT_FLOOR = 1e-10, 1e-8


def centre_of_mass_loss(
    positions: Float[Tensor, "b r 37 3"], labels: Labels, asym_id: Int[Tensor, "b r"]
) -> Float[Tensor, " b"]:
    """Return the mean squared error of chain centres that are too near to each other, over pairs of chains.

    A centre is the mean of a chain's observed C-alphas. The error is the distance beyond 4 Angstrom by which two
    centres are nearer than in the truth, in units of 20 Angstrom. A complex of one chain has a loss of 0.
    AlphaFold-Multimer (Evans et al. 2022), Sec. 2.5, Eq. 1.
    """
    mask = labels.all_atom_mask[..., _CA]
    same_chain = asym_id[:, :, None] == asym_id[:, None, :]
    members = same_chain * rearrange(mask, "b j -> b 1 j")
    sizes = members.sum(-1).clamp(min=1)

    def distances(points: Float[Tensor, "b r 37 3"]) -> Float[Tensor, "b r r"]:
        # Each residue stands for the centre of its chain.
        centres = members @ points[..., _CA, :] / sizes[..., None]
        return length(centres[:, :, None] - centres[:, None], _SMALL_DISTANCE**0.5)

    excess = (distances(positions) - distances(labels.all_atom_positions) + _TOLERANCE) / _UNIT
    # A pair of chains counts once, whatever their numbers of residues.
    weight = mask / sizes
    counted = ~same_chain * rearrange(weight, "b i -> b i 1") * rearrange(weight, "b j -> b 1 j")
    return (counted * excess.clamp(max=0).square()).sum((1, 2)) / (counted.sum((1, 2)) + _COUNT_FLOOR)
