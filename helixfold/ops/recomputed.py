"""Autograd functions that save only their arguments and recompute the rest in the backward pass."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from helixfold.ops.sizes import loops_if_large


def recomputed(
    forward: Callable[..., Any],
    backward: Callable[..., tuple[Tensor | None, ...]],
    *tensors: Tensor | None,
    **constants: Any,
) -> Any:
    """Return `forward(*tensors, **constants)`, whose gradients `backward` computes from the saved tensors alone.

    `backward` takes a tuple that says which tensors need gradients, the gradients of the results, the tensors, and the
    constants; it returns a gradient or None for each tensor.
    """
    return _function(forward, backward).apply(constants, *tensors)


@cache
def _function(
    forward: Callable[..., Any], backward: Callable[..., tuple[Tensor | None, ...]]
) -> type[torch.autograd.Function]:
    """Return an autograd function of this forward and backward, named after the forward."""

    def compute(ctx: Any, constants: dict[str, Any], *tensors: Tensor | None) -> Any:
        ctx.save_for_backward(*tensors)
        ctx.constants = constants
        with loops_if_large(*_sizes(tensors)):
            return forward(*tensors, **constants)

    def differentiate(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # Read only once, since PyTorch's checkpoint hands over each saved tensor only once.
        tensors = ctx.saved_tensors
        with loops_if_large(*_sizes(tensors)):
            return None, *backward(ctx.needs_input_grad[1:], *gradients, *tensors, **ctx.constants)

    methods = {"forward": staticmethod(compute), "backward": staticmethod(differentiate)}
    return type(forward.__name__, (torch.autograd.Function,), methods)


def _sizes(tensors: Iterable[Tensor | None]) -> Iterator[int]:
    return (tensor.numel() for tensor in tensors if tensor is not None)
