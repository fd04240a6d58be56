"""Rows of a small learnt table, one for every pair of residues."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from helixfold.ops.multiply import multiply


def look_up(table: Float[Tensor, "v c"], index: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch c"]:
    """The table's rows of these numbers: a one-hot times a matrix, without the one-hot."""
    return _LookUp.apply(table, index)


class _LookUp(torch.autograd.Function):
    """Indexing whose gradient is a matrix product.

    The gradient of PyTorch's own indexing adds the rows up one by one in the table's dtype: in bfloat16 on a CPU most
    of the sum over a crop's pairs is lost, and on a GPU the order of the sum, and so its last bits, are left to chance.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.count = table.shape[0]
        return table[index]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        chosen = torch.nn.functional.one_hot(index.flatten(), ctx.count).to(gradient.dtype)
        return multiply(chosen.T, gradient.reshape(index.numel(), -1)), None
