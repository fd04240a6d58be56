"""Lookup of rows in a learnt table."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from helixfold.ops.linear import multiply


def look_up(table: Float[Tensor, "v c"], index: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch c"]:
    """Return the table's rows at these indices, which equals one-hot vectors times the table."""
    return _LookUp.apply(table, index)


class _LookUp(torch.autograd.Function):
    """Indexing whose gradient is a matrix product with one-hot vectors.

    The gradient of PyTorch's indexing is summed row by row in the table's dtype. In bfloat16 on a CPU this loses most
    of the sum over a crop's pairs, and on a GPU the order of the sum, and so the last bits, change from run to run.
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
