"""Look up constants of residue types as tensors."""

from functools import cache

import torch
from jaxtyping import Int
from torch import Tensor

from data_pipeline import residues


def per_residue(name: str, aatype: Int[Tensor, "*batch r"], dtype: torch.dtype | None = None) -> Tensor:
    """Return the row of each residue's type in the table `name` of `data_pipeline.residues`, in `dtype` if passed."""
    rows = table(name, aatype.device)[aatype]
    return rows if dtype is None else rows.to(dtype)


@cache
def table(name: str, device: torch.device) -> Tensor:
    """Return the table `name` of `data_pipeline.residues`, with a row for each residue type, as a cached tensor."""
    return torch.tensor(getattr(residues, name), device=device)
