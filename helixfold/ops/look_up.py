"""Embedding lookup with an accurate, reproducible gradient."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from helixfold.ops.linear import multiply


def look_up(table: Float[Tensor, "v c"], index: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch c"]:
    """Return the rows of an embedding table at these indices: the product of one-hot vectors and the table."""
    return _LookUp.apply(table, index)


class _LookUp(torch.autograd.Function):
    """Indexing whose gradient is a matrix product with one-hot vectors.

    PyTorch sums the gradient of indexing row by row in the dtype of the table. In bfloat16 on a CPU, most of the sum
    over the pairs of a crop is lost. On a GPU, the order of the sum, and with it the last bits, varies between runs.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.count = table.shape[0]
        return table[index]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the table: for each row, the sum of the gradients of its copies."""
        (index,) = ctx.saved_tensors
        one_hot = torch.nn.functional.one_hot(index.flatten(), ctx.count).to(gradient.dtype)
        return multiply(one_hot.T, gradient.reshape(index.numel(), -1)), None
