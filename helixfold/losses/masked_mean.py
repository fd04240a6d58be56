"""Means over the elements that count."""

from jaxtyping import Float
from torch import Tensor


def masked_mean(values: Float[Tensor, "b *n"], mask: Float[Tensor, "b *n"], floor: float) -> Float[Tensor, " b"]:
    """Return each sample's mean of the values where the mask is 1; `floor` is added to their number."""
    values, mask = values.flatten(1), mask.flatten(1)
    return (values[:, None] @ mask[..., None]).view(-1) / (floor + mask.sum(1))
