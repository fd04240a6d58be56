"""Losses of the output heads: distogram, masked MSA, lDDT, aligned error and experimentally resolved atoms.

Targets computed from the predicted structure (lDDT and aligned error) have no gradient.
"""

from functools import cache

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from data_pipeline.residues import ATOM_ORDER
from helixfold.losses.labels import Labels
from helixfold.model.confidence import aligned_error_breaks
from helixfold.model.evoformer import outer_mask
from helixfold.model.geometry.rigid import Rigid, rigid_from_tensor
from helixfold.model.heads import FIRST_DISTANCE, LAST_DISTANCE

_CA = ATOM_ORDER["CA"]
# Added to counts of pairs, and of residues or atoms (DeepMind's program).
_PAIRS_FLOOR, _COUNT_FLOOR = 1e-6, 1e-8
_LDDT_CUTOFF = 15.0  # Angstrom; pairs further apart in the true structure do not count
LDDT_LIMITS = (0.5, 1.0, 2.0, 4.0)  # Angstrom, maximum errors of preserved distances
_LDDT_FLOOR = 1e-10  # makes the lDDT of a residue without neighbours 1, as in DeepMind's program
_SMOOTH_LDDT_FLOOR = 1e-10


def cross_entropy(logits: Float[Tensor, "*batch v"], labels: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return the negative log-probability of each label, without a mean."""
    flat = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return flat.view(labels.shape)


def distogram_loss(
    logits: Float[Tensor, "b r r v"], pseudo_beta: Float[Tensor, "b r 3"], mask: Float[Tensor, "b r"]
) -> Float[Tensor, " b"]:
    """Return the mean cross-entropy of the true distance bins of all pairs of observed pseudo-beta atoms.

    AlphaFold 2, Suppl. Sec. 1.9.8.
    """
    difference = rearrange(pseudo_beta, "b i x -> b i 1 x") - rearrange(pseudo_beta, "b j x -> b 1 j x")
    true_bins = torch.bucketize(difference.square().sum(-1), _squared_edges(logits.shape[-1], logits.device))
    return masked_mean(cross_entropy(logits, true_bins), outer_mask(mask), _PAIRS_FLOOR)


def masked_msa_loss(
    logits: Float[Tensor, "b s r v"], true_msa: Int[Tensor, "b s r"], bert_mask: Float[Tensor, "b s r"]
) -> Float[Tensor, " b"]:
    """Return the mean cross-entropy of the true residue types where `bert_mask` is 1 (Suppl. Sec. 1.9.9)."""
    return masked_mean(cross_entropy(logits, true_msa), bert_mask, _COUNT_FLOOR)


@torch.no_grad()
def lddt_ca(
    points: Float[Tensor, "b r 3"], true_points: Float[Tensor, "b r 3"], mask: Float[Tensor, "b r"]
) -> Float[Tensor, "b r"]:
    """Return the lDDT of each residue's C-alpha, 0 to 1 (Suppl. Alg. 29 line 5), without stereochemical checks.

    It is 1 for residues without an observed neighbour within 15 Angstrom in the true structure, and has no gradient.
    """
    errors, counted = distance_errors(points, true_points, mask)
    exceeded = torch.bucketize(errors, _lddt_limits(errors.device), right=True)
    share = (1 - exceeded / len(LDDT_LIMITS)).to(counted.dtype)
    preserved = torch.einsum("b i j, b i j -> b i", counted, share)
    return (_LDDT_FLOOR + preserved) / (_LDDT_FLOOR + counted.sum(-1))


def distance_errors(
    points: Float[Tensor, "*l b r 3"], true_points: Float[Tensor, "b r 3"], mask: Float[Tensor, "b r"]
) -> tuple[Float[Tensor, "*l b r r"], Float[Tensor, "b r r"]]:
    """Return the absolute error of the distance of each pair (Angstrom), and a mask of the pairs that count in lDDT.

    Pairs of two observed residues count if their true distance is below 15 Angstrom, but not a residue with itself.
    """
    true_distances = _distances(true_points)
    errors = (_distances(points) - true_distances).abs()
    counted = (true_distances < _LDDT_CUTOFF) * outer_mask(mask)
    counted.diagonal(dim1=1, dim2=2).zero_()
    return errors, counted


def lddt_loss(
    logits: Float[Tensor, "b r v"], positions: Float[Tensor, "b r 37 3"], labels: Labels
) -> Float[Tensor, " b"]:
    """Return the mean cross-entropy of the lDDT-CA bins of observed residues (AlphaFold 2, Suppl. Alg. 29)."""
    mask = labels.all_atom_mask[..., _CA]
    score = lddt_ca(positions[..., _CA, :], labels.all_atom_positions[..., _CA, :], mask)
    bins = logits.shape[-1]
    true_bins = (score * bins).long().clamp(max=bins - 1)
    return masked_mean(cross_entropy(logits, true_bins), mask, _COUNT_FLOOR)


def aligned_error_loss(
    logits: Float[Tensor, "b i j v"], frames: Float[Tensor, "b r 7"], true_frames: Rigid, mask: Float[Tensor, "b r"]
) -> Float[Tensor, " b"]:
    """Return the mean cross-entropy of the error bins of each C-alpha in each backbone frame (Suppl. Sec. 1.9.7).

    Predicted and true frames are (b r). Pairs count where `mask` is 1 for both residues.
    """
    with torch.no_grad():
        difference = _local_origins(rigid_from_tensor(frames)) - _local_origins(true_frames)
        true_bins = torch.bucketize(difference.square().sum(-1), _squared_breaks(logits.shape[-1], logits.device))
    return masked_mean(cross_entropy(logits, true_bins), outer_mask(mask), _COUNT_FLOOR)


def experimentally_resolved_loss(logits: Float[Tensor, "b r 37"], labels: Labels) -> Float[Tensor, " b"]:
    """Return the mean binary cross-entropy of whether atoms are observed, over atoms that residue types have.

    AlphaFold 2, Suppl. Sec. 1.9.10.
    """
    errors = nn.functional.binary_cross_entropy_with_logits(logits, labels.all_atom_mask, reduction="none")
    return masked_mean(errors, labels.atom37_atom_exists, _COUNT_FLOOR)


def has_resolution(labels: Labels, min_resolution: float, max_resolution: float) -> Bool[Tensor, " b"]:
    """Return whether each sample has a resolution from which confidences are learnt (Suppl. Sec. 1.9.6, 1.9.10).

    The range is in Angstrom and includes both ends. NMR structures and predictions have a resolution of 0.
    """
    return (labels.resolution >= min_resolution) & (labels.resolution <= max_resolution)


@cache
def _lddt_limits(device: torch.device) -> Float[Tensor, " limits"]:
    return torch.tensor(LDDT_LIMITS, device=device)


@cache
def _squared_edges(bins: int, device: torch.device) -> Float[Tensor, " edges"]:
    """Return the squares of the inner edges of the distance bins."""
    return torch.linspace(FIRST_DISTANCE, LAST_DISTANCE, bins - 1, device=device).square()


@cache
def _squared_breaks(bins: int, device: torch.device) -> Float[Tensor, "edges"]:
    return aligned_error_breaks(bins).square().to(device)


def _local_origins(frames: Rigid) -> Float[Tensor, "b i j 3"]:
    """Return the origins j in the frames i; a frame's own origin is exactly 0, so its error is in the first bin."""
    origins = frames.translation
    return frames[..., None].invert_apply(rearrange(origins, "b j x -> b 1 j x").expand(-1, origins.shape[1], -1, -1))


def _distances(points: Float[Tensor, "*l b r 3"]) -> Float[Tensor, "*l b r r"]:
    # Squared norms from matrix products are not precise enough for errors of 0.5 Angstrom in distances of 1,000
    # Angstrom.
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")


def smooth_lddt_loss(frames: Float[Tensor, "l b r 7"], labels: Labels) -> Float[Tensor, " b"]:
    """Return 1 minus the smooth lDDT of C-alphas, averaged over residues and iterations (AlphaFold 3, Suppl. Alg. 27).

    Only observed residues with a neighbour count, and `l` is the iterations of the structure module. The four steps of
    lDDT are replaced by logistic functions of the distance error with a width of 1 Angstrom. C-alphas are the origins
    of the backbone frames. The loss is equal for mirror images, so use it in addition to FAPE.
    """
    points, truth = frames[..., 4:], labels.all_atom_positions[..., _CA, :]
    mask = labels.all_atom_mask[..., _CA]
    errors, counted = distance_errors(points, truth, mask)
    preserved = sum(torch.sigmoid(limit - errors) for limit in LDDT_LIMITS) / len(LDDT_LIMITS)
    score = (counted * preserved).sum(-1) / (_SMOOTH_LDDT_FLOOR + counted.sum(-1))
    has_neighbours = mask * (counted.sum(-1) > 0)
    return ((has_neighbours * (1 - score)).sum(-1) / (_SMOOTH_LDDT_FLOOR + has_neighbours.sum(-1))).mean(0)


def masked_mean(values: Float[Tensor, "b *n"], mask: Float[Tensor, "b *n"], floor: float) -> Float[Tensor, " b"]:
    """Return the mean of the values where the mask is 1, for each sample; `floor` is added to the count."""
    values, mask = values.flatten(1), mask.flatten(1)
    return (values[:, None] @ mask[..., None]).view(-1) / (floor + mask.sum(1))
