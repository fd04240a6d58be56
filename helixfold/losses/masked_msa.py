"""Hidden letters of the MSA, to be found again."""

from jaxtyping import Float, Int
from torch import Tensor

from helixfold.losses.cross_entropy import cross_entropy

_COUNT_FLOOR = 1e-8  # DeepMind's program


def masked_msa_loss(
    logits: Float[Tensor, "b s r v"], true_msa: Int[Tensor, "b s r"], bert_mask: Float[Tensor, "b s r"]
) -> Float[Tensor, " b"]:
    """Cross-entropy of the letters that were asked for (AlphaFold 2, Suppl. Sec. 1.9.9)."""
    errors = cross_entropy(logits, true_msa) * bert_mask
    return errors.sum((-1, -2)) / (_COUNT_FLOOR + bert_mask.sum((-1, -2)))
