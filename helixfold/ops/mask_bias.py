"""What a mask adds to the logits of attention."""

from jaxtyping import Float, Float32
from torch import Tensor

from helixfold.ops.constants import MASKED


def every_key_counts(mask: Float[Tensor, "*batch k"]) -> bool:
    """Return whether the mask is all ones; on the meta device, where it has no values, assume that some are zero."""
    return not mask.is_meta and bool((mask == 1).all())


def mask_bias(mask: Float[Tensor, "*batch k"]) -> Float32[Tensor, "*batch k"] | None:
    """Return what is added to the logits in float32 for the mask; None where all keys count."""
    return None if every_key_counts(mask) else MASKED * (mask.float() - 1)
