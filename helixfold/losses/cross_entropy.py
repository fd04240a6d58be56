"""The one way in which heads that answer with a distribution are scored, for distances and for hidden letters."""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from helixfold.model.heads import FIRST_DISTANCE, LAST_DISTANCE

# DeepMind's program adds these to counts.
_PAIRS_FLOOR, _LETTERS_FLOOR = 1e-6, 1e-8


def cross_entropy(logits: Float[Tensor, "*batch v"], labels: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Minus the logarithm of the probability given to each label."""
    flat = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return flat.view(labels.shape)


def distogram_loss(
    logits: Float[Tensor, "b r r v"], pseudo_beta: Float[Tensor, "b r 3"], mask: Float[Tensor, "b r"]
) -> Float[Tensor, " b"]:
    """Cross-entropy of the true distances of all pairs of pseudo-beta atoms (Suppl. Sec. 1.9.8)."""
    edges = torch.linspace(FIRST_DISTANCE, LAST_DISTANCE, logits.shape[-1] - 1, device=logits.device)
    difference = rearrange(pseudo_beta, "b i x -> b i 1 x") - rearrange(pseudo_beta, "b j x -> b 1 j x")
    true_bins = torch.bucketize(difference.square().sum(-1), edges.square())
    pairs = rearrange(mask, "b i -> b i 1") * rearrange(mask, "b j -> b 1 j")
    return (cross_entropy(logits, true_bins) * pairs).sum((-1, -2)) / (_PAIRS_FLOOR + pairs.sum((-1, -2)))


def masked_msa_loss(
    logits: Float[Tensor, "b s r v"], true_msa: Int[Tensor, "b s r"], bert_mask: Float[Tensor, "b s r"]
) -> Float[Tensor, " b"]:
    """Cross-entropy of the letters of the MSA that were hidden, to be found again (Suppl. Sec. 1.9.9)."""
    errors = cross_entropy(logits, true_msa) * bert_mask
    return errors.sum((-1, -2)) / (_LETTERS_FLOOR + bert_mask.sum((-1, -2)))
