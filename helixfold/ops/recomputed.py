"""Functions whose gradients are computed from their arguments again: a training pass keeps nothing else."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor


def recomputed(
    forward: Callable[..., Any],
    backward: Callable[..., tuple[Tensor | None, ...]],
    *tensors: Tensor | None,
    **constants: Any,
) -> Any:
    """Return `forward(*tensors, **constants)`, whose gradients `backward` computes; only the tensors are kept for it.

    `backward` takes whether the gradient of each tensor is needed, the gradients of the results, the tensors, and the
    constants; it returns a gradient or None for each tensor.
    """
    return _function(forward, backward).apply(constants, *tensors)


@cache
def _function(
    forward: Callable[..., Any], backward: Callable[..., tuple[Tensor | None, ...]]
) -> type[torch.autograd.Function]:
    """The autograd function of the two, with the name of the first."""

    def compute(ctx: Any, constants: dict[str, Any], *tensors: Tensor | None) -> Any:
        ctx.save_for_backward(*tensors)
        ctx.constants = constants
        return forward(*tensors, **constants)

    def differentiate(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # What is saved is read once: what recompute hands over can be asked for only once.
        return None, *backward(ctx.needs_input_grad[1:], *gradients, *ctx.saved_tensors, **ctx.constants)

    methods = {"forward": staticmethod(compute), "backward": staticmethod(differentiate)}
    return type(forward.__name__, (torch.autograd.Function,), methods)
