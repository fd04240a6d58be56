"""Mask biases, which are added to the logits of attention."""

from jaxtyping import Float, Float32
from torch import Tensor

from helixfold.ops.constants import MASKED


def every_key_counts(mask: Float[Tensor, "*batch k"]) -> bool:
    """Return whether the mask is all ones; masks on the meta device count as having zeros."""
    return not mask.is_meta and bool((mask == 1).all())


def mask_bias(mask: Float[Tensor, "*batch k"]) -> Float32[Tensor, "*batch k"] | None:
    """Return the bias that masks keys in the logits, or None if all keys count."""
    return None if every_key_counts(mask) else MASKED * (mask.float() - 1)
