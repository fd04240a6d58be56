"""Autograd functions that save their arguments and recompute everything else in the backward pass.

Some operators on a CPU also save intermediate results that would take long to recompute, such as hidden channels,
unless `intermediates` turns this off around their forward pass.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from helixfold.ops.sizes import loops_if_large

# How operators treat intermediate results. PyTorch's checkpoint runs a forward pass twice, and both runs must save
# the same number of tensors, of the same shapes. In the first run intermediates are therefore "replaced".
Intermediates = Literal["kept", "replaced", "recomputed"]
_intermediates: ContextVar[Intermediates] = ContextVar("_intermediates", default="kept")


@contextmanager
def intermediates(mode: Intermediates) -> Iterator[None]:
    """Choose whether operators whose forward pass is inside save ("kept") or recompute their intermediate results.

    "replaced" saves stand-ins without memory. It is for the first run of PyTorch's checkpoint if the second is "kept".
    """
    token = _intermediates.set(mode)
    try:
        yield
    finally:
        _intermediates.reset(token)


class SavedIntermediates:
    """Intermediate results that the forward pass of an operator saves for its backward pass, in order."""

    def __init__(self) -> None:
        # Created outside the forward pass, in which gradients are off.
        self._mode = _intermediates.get() if torch.is_grad_enabled() else "recomputed"
        self._tensors: list[Tensor] = []

    def buffer(self, *shape: int, like: Tensor) -> Tensor | None:
        """Return an empty tensor for a result to be saved, with the dtype and device of `like`, or None.

        None is returned if nothing or, with "replaced", only a stand-in is saved. The caller then needs no buffer. One
        large tensor, into which blocks are copied, takes less memory than one tensor per block, because the allocator
        holds unused memory between the latter.
        """
        if self._mode == "recomputed":
            return None
        is_saved = self._mode == "kept"
        self._tensors.append(like.new_empty(shape) if is_saved else like.new_empty(1).expand(shape))
        return self._tensors[-1] if is_saved else None

    def release(self) -> list[Tensor]:
        """Return the saved tensors and drop the references to them."""
        tensors, self._tensors = self._tensors, []
        return tensors


def recomputed(
    forward: Callable[..., Any],
    backward: Callable[..., tuple[Tensor | None, ...]],
    *tensors: Tensor | None,
    can_save: bool = False,
    **constants: Any,
) -> Any:
    """Return `forward(*tensors, **constants)`, and let `backward` compute its gradients from the saved tensors.

    `backward` takes a tuple of booleans, one for each tensor that may need a gradient, then the gradients of the
    results, the tensors, and the constants. It returns a gradient or None for each tensor. If `can_save`, both also
    take `saved`: for `forward` a `SavedIntermediates` with buffers for intermediate results, and for `backward` a list
    of these results, which is empty if they must be recomputed.
    """
    if can_save:
        constants["saved"] = SavedIntermediates()
    return _function(forward, backward).apply(constants, *tensors)


@cache
def _function(
    forward: Callable[..., Any], backward: Callable[..., tuple[Tensor | None, ...]]
) -> type[torch.autograd.Function]:
    """Return an autograd function with these passes, named after `forward`."""

    def compute(ctx: Any, constants: dict[str, Any], *tensors: Tensor | None) -> Any:
        """Run the forward pass, and save the tensors and the intermediate results of `constants["saved"]`."""
        with loops_if_large(*_sizes(tensors)):
            result = forward(*tensors, **constants)
        intermediate = constants["saved"].release() if "saved" in constants else []
        ctx.save_for_backward(*tensors, *intermediate)
        ctx.constants, ctx.arguments = constants, len(tensors)
        return result

    def differentiate(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the tensors, and None for the constants."""
        # Read only once, because PyTorch's checkpoint returns each saved tensor only once.
        all_saved, constants = ctx.saved_tensors, ctx.constants
        tensors, saved = all_saved[: ctx.arguments], all_saved[ctx.arguments :]
        if "saved" in constants:
            constants = constants | {"saved": saved}
        with loops_if_large(*_sizes((*gradients, *tensors))):
            return None, *backward(ctx.needs_input_grad[1:], *gradients, *tensors, **constants)

    methods = {"forward": staticmethod(compute), "backward": staticmethod(differentiate)}
    return type(forward.__name__, (torch.autograd.Function,), methods)


def _sizes(tensors: Iterable[Tensor | None]) -> Iterator[int]:
    """Yield the numbers of elements of the tensors that are not None."""
    return (tensor.numel() for tensor in tensors if tensor is not None)
