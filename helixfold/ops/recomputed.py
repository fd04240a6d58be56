"""Autograd functions that save their arguments, and recompute the rest in the backward pass.

Some operators on a CPU also keep intermediate results that would take long to compute again, such as hidden channels,
unless `intermediates` around their forward pass says otherwise.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from helixfold.ops.sizes import loops_if_large

# What operators do with intermediate results. In the first run of what PyTorch's checkpoint runs again, they are
# "replaced": the second run must save as many tensors, of the same shapes.
Intermediates = Literal["kept", "replaced", "recomputed"]
_intermediates: ContextVar[Intermediates] = ContextVar("_intermediates", default="kept")


@contextmanager
def intermediates(are: Intermediates) -> Iterator[None]:
    """Choose what operators whose forward pass is inside do with intermediate results: keep or recompute them.

    "replaced" is for the first run under PyTorch's checkpoint if the second one keeps them.
    """
    token = _intermediates.set(are)
    try:
        yield
    finally:
        _intermediates.reset(token)


class Kept:
    """Intermediate results that an operator's forward pass keeps for its backward pass, in their order."""

    def __init__(self) -> None:
        # Inside a forward pass gradients are off.
        self._are = _intermediates.get() if torch.is_grad_enabled() else "recomputed"
        self._tensors: list[Tensor] = []

    def room(self, *shape: int, like: Tensor) -> Tensor | None:
        """Return an empty tensor, of the dtype and device of another, for what is to be kept; None if it is not.

        One large tensor, into which blocks are copied, takes less memory than tensors of the blocks: between those the
        allocator holds some that are no longer used.
        """
        if self._are == "recomputed":
            return None
        is_kept = self._are == "kept"
        self._tensors.append(like.new_empty(shape) if is_kept else like.new_empty(1).expand(shape))
        return self._tensors[-1] if is_kept else None

    def handed_over(self) -> list[Tensor]:
        """Return what is kept and hold it no longer."""
        tensors, self._tensors = self._tensors, []
        return tensors


def recomputed(
    forward: Callable[..., Any],
    backward: Callable[..., tuple[Tensor | None, ...]],
    *tensors: Tensor | None,
    can_keep: bool = False,
    **constants: Any,
) -> Any:
    """Return `forward(*tensors, **constants)`, whose gradients `backward` computes from the saved tensors alone.

    `backward` takes a tuple that says which tensors need gradients, the gradients of the results, the tensors, and the
    constants; it returns a gradient or None for each tensor. If `can_keep`, both also take `kept`: `forward` a `Kept`
    with room for intermediate results, and `backward` a list of these, which is empty if they are to be recomputed.
    """
    if can_keep:
        constants["kept"] = Kept()
    return _function(forward, backward).apply(constants, *tensors)


@cache
def _function(
    forward: Callable[..., Any], backward: Callable[..., tuple[Tensor | None, ...]]
) -> type[torch.autograd.Function]:
    """Return an autograd function of this forward and backward, named after the forward."""

    def compute(ctx: Any, constants: dict[str, Any], *tensors: Tensor | None) -> Any:
        with loops_if_large(*_sizes(tensors)):
            result = forward(*tensors, **constants)
        kept = constants["kept"].handed_over() if "kept" in constants else []
        ctx.save_for_backward(*tensors, *kept)
        ctx.constants, ctx.arguments = constants, len(tensors)
        return result

    def differentiate(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # Read only once, since PyTorch's checkpoint hands over each saved tensor only once.
        saved, constants = ctx.saved_tensors, ctx.constants
        tensors, kept = saved[: ctx.arguments], saved[ctx.arguments :]
        if "kept" in constants:
            constants = constants | {"kept": kept}
        with loops_if_large(*_sizes(tensors)):
            return None, *backward(ctx.needs_input_grad[1:], *gradients, *tensors, **constants)

    methods = {"forward": staticmethod(compute), "backward": staticmethod(differentiate)}
    return type(forward.__name__, (torch.autograd.Function,), methods)


def _sizes(tensors: Iterable[Tensor | None]) -> Iterator[int]:
    return (tensor.numel() for tensor in tensors if tensor is not None)
