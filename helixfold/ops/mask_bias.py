"""Masks as biases of attention logits, and as indices of unmasked elements."""

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from helixfold.ops.constants import MASKED
from helixfold.ops.device_properties import properties_of


def every_key_counts(mask: Float[Tensor, "*batch k"]) -> bool:
    """Return whether a mask on a CPU is all ones, and False on other devices.

    Reading a mask on a GPU would make the host wait, and a mask on the meta device has no values.
    """
    return properties_of(mask.device).kind == "cpu" and not mask.is_meta and bool((mask == 1).all())


def mask_bias(mask: Float[Tensor, "*batch k"]) -> Float32[Tensor, "*batch k"] | None:
    """Return the bias that masks keys when added to the logits, or None if no key is masked."""
    return None if every_key_counts(mask) else MASKED * (mask.float() - 1)


def unmasked(mask: Bool[Tensor, "b n"]) -> Tensor | slice:
    """Return the indices along dim 1 of the elements that are unmasked in any sample.

    On a GPU, return an index of all elements, because reading the mask would make the host wait.
    """
    if properties_of(mask.device).kind != "cpu":
        return slice(None)
    # Meta tensors have no values. In a typical protein, half of the rigid groups and atoms exist.
    return torch.arange(mask.shape[1] // 2, device=mask.device) if mask.is_meta else mask.any(0).nonzero()[:, 0]
