"""Results of operators on a CPU that are written, or added to a stream, while a block of them is in the cache."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from helixfold.ops.dispatch import wants_gradient
from helixfold.ops.recomputed import recomputed
from helixfold.ops.residual import Residual


class Result:
    """The change of a stream, or the stream of a residual plus its change, written block by block.

    `tensor` is the result. With a residual that is `in_place`, a block must be read before it is written.
    """

    def __init__(self, like: Tensor, residual: Residual | None) -> None:
        self._residual = residual
        self.tensor = torch.empty_like(like) if residual is None or not residual.in_place else residual.stream

    def write(self, index: tuple[int | slice, ...], change: Tensor) -> None:
        """Write a block, given its change with the same number of elements, which may be the block itself."""
        block = self.tensor[index]
        if self._residual is None:
            block.copy_(change.view(block.shape))
        else:
            torch.add(self._residual.stream[index], change.view(block.shape), out=block)


def change_or_sum(
    residual: Residual | None,
    forward: Callable[..., Tensor],
    backward: Callable[..., tuple[Tensor | None, ...]],
    *tensors: Tensor | None,
    **constants: Any,
) -> Tensor:
    """Return the change that `recomputed` returns, or with `residual` its stream plus change times dropout mask.

    Without gradients and dropout, `forward` takes the residual and adds the change itself.
    """
    if residual is not None and residual.dropout_mask is None and not wants_gradient(residual.stream, *tensors):
        with torch.no_grad():
            total: Tensor = recomputed(forward, backward, *tensors, **constants, residual=residual)
        return total
    change: Tensor = recomputed(forward, backward, *tensors, **constants)
    return change if residual is None else residual.plus(change)
