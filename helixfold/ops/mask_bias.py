"""Masks: the biases that are added to the logits of attention, and the elements that operators and losses take."""

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from helixfold.ops.constants import MASKED
from helixfold.ops.device_properties import properties_of


def every_key_counts(mask: Float[Tensor, "*batch k"]) -> bool:
    """Return whether the mask is all ones; on a GPU it counts as having zeros, for the host would wait for the answer.

    So do masks on the meta device.
    """
    return properties_of(mask.device).kind == "cpu" and not mask.is_meta and bool((mask == 1).all())


def mask_bias(mask: Float[Tensor, "*batch k"]) -> Float32[Tensor, "*batch k"] | None:
    """Return the bias that masks keys in the logits, or None if all keys count."""
    return None if every_key_counts(mask) else MASKED * (mask.float() - 1)


def unmasked(mask: Bool[Tensor, "b n"]) -> Tensor | slice:
    """Return an index of the elements that count in some sample; on a GPU of all, since the host would wait for it."""
    if properties_of(mask.device).kind != "cpu":
        return slice(None)
    # Meta tensors have no values: assume that half of the rigid groups and atoms exist, as in a typical protein.
    return torch.arange(mask.shape[1] // 2, device=mask.device) if mask.is_meta else mask.any(0).nonzero()[:, 0]
