"""Look up constants of residue types as tensors."""

from functools import cache

import torch
from jaxtyping import Int
from torch import Tensor

from data_pipeline import residues


def per_residue(name: str, aatype: Int[Tensor, "*batch r"], dtype: torch.dtype | None = None) -> Tensor:
    """Look up each residue's type in a table of `data_pipeline.residues`."""
    rows = table(name, aatype.device)[aatype]
    return rows if dtype is None else rows.to(dtype)


@cache
def table(name: str, device: torch.device) -> Tensor:
    """Return a table of `data_pipeline.residues`, which has a row for each residue type."""
    return torch.tensor(getattr(residues, name), device=device)
