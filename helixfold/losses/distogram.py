"""Distances between residues, as a distribution over bins."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.losses.cross_entropy import cross_entropy
from helixfold.model.heads import FIRST_DISTANCE, LAST_DISTANCE

_COUNT_FLOOR = 1e-6  # DeepMind's program


def distogram_loss(
    logits: Float[Tensor, "b r r v"], pseudo_beta: Float[Tensor, "b r 3"], mask: Float[Tensor, "b r"]
) -> Float[Tensor, " b"]:
    """Cross-entropy of the true distances of all pairs of pseudo-beta atoms (Suppl. Sec. 1.9.8)."""
    edges = torch.linspace(FIRST_DISTANCE, LAST_DISTANCE, logits.shape[-1] - 1, device=logits.device)
    difference = rearrange(pseudo_beta, "b i x -> b i 1 x") - rearrange(pseudo_beta, "b j x -> b 1 j x")
    true_bins = torch.bucketize(difference.square().sum(-1), edges.square())
    pairs = rearrange(mask, "b i -> b i 1") * rearrange(mask, "b j -> b 1 j")
    return (cross_entropy(logits, true_bins) * pairs).sum((-1, -2)) / (_COUNT_FLOOR + pairs.sum((-1, -2)))
