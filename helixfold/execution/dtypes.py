"""Dtype of the arithmetic in the trunk of the network: given by its name, or chosen for a card."""

from collections.abc import Sequence

import torch

from helixfold.model.alphafold import IN_FLOAT32, AlphaFold
from helixfold.ops.card import Card

AUTO = "auto"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# The first compute capability whose matrix units multiply bfloat16.
_BFLOAT16_FROM = (8, 0)


def settled_dtype(name: str, card: Card) -> str:
    """Return the name of the dtype that "auto" stands for on a card; a name of `DTYPES` stands for itself.

    It is bfloat16 on NVIDIA's GPUs that multiply it, and float32 on older ones and on all other devices. It is never
    float16, whose largest number, 65,504, a trained network may pass.
    """
    if name != AUTO:
        return name
    return "bfloat16" if card.capability is not None and card.capability >= _BFLOAT16_FROM else "float32"


def common_dtype(names: Sequence[str]) -> str:
    """Return the dtype in which devices compute alike that would choose these themselves: float32 if they differ."""
    return names[0] if len(set(names)) == 1 else "float32"


def dtype_on(name: str, card: Card) -> torch.dtype:
    """Return the dtype of this name on a card; "auto" is chosen for the card."""
    return DTYPES[settled_dtype(name, card)]


def cast_trunk(network: AlphaFold, dtype: torch.dtype) -> None:
    """Cast the parameters of the trunk, on a GPU, to its dtype once, so that operators need not for every call.

    Those of the structure module and the heads, which compute in float32, stay as they are, and so do buffers. On a CPU
    nothing is cast, since its operators round products alone.
    """
    for name, part in network.named_children():
        if name not in IN_FLOAT32:
            for parameter in part.parameters():
                if parameter.device.type != "cpu":
                    parameter.data = parameter.data.to(dtype)
