"""Choice of the elements that an operator or a loss computes with."""

import torch
from jaxtyping import Bool
from torch import Tensor

from helixfold.ops.card import card_of


def unmasked(mask: Bool[Tensor, "b n"]) -> Tensor | slice:
    """Return an index of the elements that count in some sample; on a GPU of all, since the host would wait for it."""
    if card_of(mask.device).kind != "cpu":
        return slice(None)
    # Meta tensors have no values: assume that half of the rigid groups and atoms exist, as in a typical protein.
    return torch.arange(mask.shape[1] // 2, device=mask.device) if mask.is_meta else mask.any(0).nonzero()[:, 0]
