"""The one way in which heads that answer with a distribution are scored."""

from jaxtyping import Float, Int
from torch import Tensor, nn


def cross_entropy(logits: Float[Tensor, "*batch v"], labels: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Minus the logarithm of the probability given to each label."""
    flat = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return flat.view(labels.shape)
